-- Who may do what. Grant one of these to the login roles of services and people; PUBLIC has nothing.

GRANT USAGE ON SCHEMA evenhand TO evenhand_app, evenhand_retention, evenhand_observer;

-- Services: the functions of the contract, and no table.
GRANT EXECUTE ON FUNCTION
    evenhand.register_policy, evenhand.load_policy, evenhand.reserve, evenhand.cursor, evenhand.reservations_from,
    evenhand.enqueue, evenhand.enqueue_many, evenhand.ready_tenants, evenhand.claim, evenhand.record_failed,
    evenhand.renew, evenhand.complete, evenhand.fail, evenhand.release, evenhand.recover,
    evenhand.run, evenhand.runs, evenhand.counts, evenhand.sequences
TO evenhand_app;

-- Pruning is a bounded function, since a role that may lock rows with SKIP LOCKED may also change them.
GRANT EXECUTE ON FUNCTION evenhand.prune_reservations TO evenhand_retention;

-- People who look.
GRANT SELECT ON ALL TABLES IN SCHEMA evenhand TO evenhand_observer;
GRANT EXECUTE ON FUNCTION
    evenhand.load_policy, evenhand.cursor, evenhand.reservations_from, evenhand.ready_tenants, evenhand.run,
    evenhand.runs, evenhand.counts, evenhand.sequences
TO evenhand_observer;

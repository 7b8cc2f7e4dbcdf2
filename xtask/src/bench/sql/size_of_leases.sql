SELECT (pg_catalog.pg_total_relation_size('evenhand.leases')
      + pg_catalog.pg_total_relation_size('evenhand.terms'))::float8;

-- The table as the mail service has had it for years.
CREATE TABLE mail_outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    recipient text NOT NULL,
    subject text NOT NULL,
    state text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sending', 'sent')),
    not_before timestamptz NOT NULL DEFAULT now()
);

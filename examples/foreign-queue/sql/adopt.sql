-- What is added for fair turns: which turn a mail was taken in. A turn is one sequence of one shard, and the constraint is
-- what makes it good for one mail.
ALTER TABLE mail_outbox
    ADD reserved_by_shard text,
    ADD reserved_by_sequence bigint,
    ADD reserved_at timestamptz,
    ADD CONSTRAINT mail_outbox_one_mail_a_turn UNIQUE (reserved_by_shard, reserved_by_sequence);

CREATE INDEX mail_outbox_waiting ON mail_outbox (customer, not_before, id) WHERE state = 'waiting';
CREATE INDEX mail_outbox_sending ON mail_outbox (reserved_at) WHERE state = 'sending';

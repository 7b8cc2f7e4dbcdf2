-- Runs can be cancelled. The new value of the state may be used only after this file is committed, hence a file of its
-- own.

ALTER TYPE evenhand.run_state ADD VALUE 'cancelled';

ALTER TABLE evenhand.attempts DROP CONSTRAINT attempts_result_check;
ALTER TABLE evenhand.attempts ADD CONSTRAINT attempts_result_check
    CHECK (result IN ('completed', 'failed', 'released', 'expired', 'cancelled'));

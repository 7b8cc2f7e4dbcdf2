-- Enqueueing then tells nobody; a worker finds runs when it looks by itself.
ALTER TABLE evenhand.runs DISABLE TRIGGER USER;

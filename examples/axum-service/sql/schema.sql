-- The service's own tables. Evenhand's are in a schema of their own.
CREATE TABLE IF NOT EXISTS stock (
    item text PRIMARY KEY,
    available integer NOT NULL CONSTRAINT stock_is_enough CHECK (available >= 0)
);

CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shop text NOT NULL,
    item text NOT NULL REFERENCES stock,
    quantity integer NOT NULL CHECK (quantity > 0),
    state text NOT NULL DEFAULT 'placed' CHECK (state IN ('placed', 'done'))
);

INSERT INTO stock (item, available) VALUES ('book', 100), ('lamp', 5) ON CONFLICT DO NOTHING

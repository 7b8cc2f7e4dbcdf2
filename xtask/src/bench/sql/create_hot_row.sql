CREATE TABLE public.hot_row (id integer PRIMARY KEY, next bigint NOT NULL);
INSERT INTO public.hot_row VALUES (1, 0);

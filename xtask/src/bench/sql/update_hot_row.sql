UPDATE public.hot_row SET next = next + 1 WHERE id = 1;

use fastrand::Rng;

/// Which connections a [`Proxy`](super::Proxy) cuts, and when.
///
/// ```
/// use evenhand_testkit::postgres::Cut;
///
/// // The next reply, whatever was asked.
/// Cut::reply();
/// // Every third reply to a request that runs a statement whose text contains this.
/// Cut::reply().every(3).matching("evenhand.reserve");
/// // One request in ten, before it reaches the server; the same ones with the same seed.
/// Cut::request().randomly(0.1, 42);
/// ```
#[derive(Clone, Debug)]
pub struct Cut {
    place: Place,
    rhythm: Rhythm,
    needle: Option<String>,
}

/// Where a connection is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    BeforeRequest,
    AfterReply,
}

#[derive(Clone, Debug)]
enum Rhythm {
    Once,
    Every(u64),
    Randomly { probability: f64, rng: Rng },
}

impl Cut {
    /// Cuts after the server has finished the request and before the client hears of it: once, unless told otherwise.
    pub fn reply() -> Self {
        Self {
            place: Place::AfterReply,
            rhythm: Rhythm::Once,
            needle: None,
        }
    }

    /// Cuts before the server sees the request: once, unless told otherwise.
    pub fn request() -> Self {
        Self {
            place: Place::BeforeRequest,
            rhythm: Rhythm::Once,
            needle: None,
        }
    }

    /// Cuts the `n`th, the `2n`th and so on, until told to stop. Zero never cuts.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.rhythm = Rhythm::Every(n);
        self
    }

    /// Cuts each with this probability, in a sequence that `seed` fixes, until told to stop.
    #[must_use]
    pub fn randomly(mut self, probability: f64, seed: u64) -> Self {
        self.rhythm = Rhythm::Randomly {
            probability,
            rng: Rng::with_seed(seed),
        };
        self
    }

    /// Looks only at requests that run a statement whose SQL text contains `needle`, prepared earlier or not.
    #[must_use]
    pub fn matching(mut self, needle: impl Into<String>) -> Self {
        self.needle = Some(needle.into());
        self
    }
}

/// A cut that waits for its requests.
#[derive(Debug)]
pub(super) struct Armed {
    cut: Cut,
    seen: u64,
    spent: bool,
}

impl Armed {
    pub(super) fn new(cut: Cut) -> Self {
        Self {
            cut,
            seen: 0,
            spent: false,
        }
    }

    /// Where to cut a request that runs these statements, if this cut applies to it.
    fn decide(&mut self, statements: &[impl AsRef<str>]) -> Option<Place> {
        let applies = match &self.cut.needle {
            None => true,
            Some(needle) => statements.iter().any(|sql| sql.as_ref().contains(needle)),
        };
        if !applies {
            return None;
        }
        self.seen += 1;
        let fires = match &mut self.cut.rhythm {
            Rhythm::Once => {
                self.spent = true;
                true
            }
            // Zero divides nothing that was seen.
            Rhythm::Every(n) => self.seen.is_multiple_of(*n),
            Rhythm::Randomly { probability, rng } => rng.f64() < *probability,
        };
        fires.then_some(self.cut.place)
    }
}

/// Where to cut a request that runs these statements: as the first cut says that applies.
pub(super) fn decide(cuts: &mut Vec<Armed>, statements: &[impl AsRef<str>]) -> Option<Place> {
    if statements.is_empty() {
        return None;
    }
    let place = cuts.iter_mut().find_map(|armed| armed.decide(statements));
    cuts.retain(|armed| !armed.spent);
    place
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut_numbers(cut: Cut, requests: &[&str]) -> Vec<usize> {
        let mut cuts = vec![Armed::new(cut)];
        let is_cut = |request: &&str| decide(&mut cuts, &[*request]).is_some();
        let cut: Vec<bool> = requests.iter().map(is_cut).collect();
        (1..)
            .zip(cut)
            .filter_map(|(number, cut)| cut.then_some(number))
            .collect()
    }

    #[test]
    fn a_cut_is_made_once_or_in_its_rhythm() {
        let requests = ["a"; 7];
        assert_eq!(cut_numbers(Cut::reply(), &requests), [1]);
        assert_eq!(cut_numbers(Cut::reply().every(3), &requests), [3, 6]);
        assert_eq!(
            cut_numbers(Cut::reply().every(1), &requests),
            [1, 2, 3, 4, 5, 6, 7]
        );
        assert!(cut_numbers(Cut::reply().every(0), &requests).is_empty());
    }

    #[test]
    fn a_needle_chooses_which_requests_count() {
        let requests = ["a", "xb", "a", "bx", "b"];
        assert_eq!(cut_numbers(Cut::reply().matching("b"), &requests), [2]);
        assert_eq!(
            cut_numbers(Cut::reply().matching("b").every(2), &requests),
            [4]
        );
        assert!(cut_numbers(Cut::reply().matching("c").every(1), &requests).is_empty());
    }

    #[test]
    fn a_seed_fixes_which_requests_are_cut() {
        let requests = ["a"; 1000];
        let cut = |seed| cut_numbers(Cut::request().randomly(0.25, seed), &requests);
        assert_eq!(cut(1), cut(1));
        assert_ne!(cut(1), cut(2));
        assert!((200..300).contains(&cut(1).len()), "{}", cut(1).len());
    }

    #[test]
    fn the_first_cut_that_applies_is_taken() {
        let mut cuts = vec![
            Armed::new(Cut::reply().matching("b")),
            Armed::new(Cut::request().every(1)),
        ];
        assert_eq!(decide(&mut cuts, &["a"]), Some(Place::BeforeRequest));
        assert_eq!(decide(&mut cuts, &["b"]), Some(Place::AfterReply));
        assert_eq!(decide(&mut cuts, &["b"]), Some(Place::BeforeRequest));
        assert_eq!(decide(&mut cuts, &[""; 0]), None, "nothing is run");
    }
}

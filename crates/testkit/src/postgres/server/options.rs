/// Settings of a server beyond PostgreSQL's own defaults.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    settings: Vec<(String, String)>,
}

impl ServerOptions {
    /// PostgreSQL's defaults, and room for 200 connections.
    pub fn new() -> Self {
        Self {
            settings: Vec::new(),
        }
        .setting("max_connections", "200")
    }

    /// For data that only a test needs: nothing is flushed to the disk, so that a crash of the machine loses it.
    ///
    /// A crash or a kill of the server alone loses nothing.
    pub fn throwaway() -> Self {
        Self::new()
            .setting("fsync", "off")
            .setting("full_page_writes", "off")
    }

    /// Sets one parameter of the server; the last value given for a name counts.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }

    pub(super) fn settings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// How a server is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopMode {
    /// Wait until every client has left.
    Smart,
    /// Roll back what is open, disconnect everybody, write a checkpoint.
    Fast,
    /// End at once without a checkpoint, as a crash does; the next start recovers from the log.
    Immediate,
}

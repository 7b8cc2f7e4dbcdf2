//! The file: whose turn it is, what was appended, and what a crash left.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;
use std::sync::Arc;

use evenhand_store::{StoreError, StoreErrorKind};

/// A journal, and how much of it this handle has read.
pub(crate) struct Journal {
    file: Arc<File>,
    /// Where the last line ends that was read or written here.
    end: u64,
}

/// The right to read or write the file, given back when it is dropped: also by a panic, and by the operating system
/// when the process dies.
pub(crate) struct Turn(Arc<File>);

impl Drop for Turn {
    fn drop(&mut self) {
        // It fails only for a file that is closed, and then the lock is gone too.
        drop(self.0.unlock());
    }
}

impl Journal {
    /// Opens a journal, or begins one.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        // A new file survives a crash only once its folder, which has its name, is on the disk too.
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(Self {
            file: Arc::new(file),
            end: 0,
        })
    }

    /// Waits until no other handle, of this process or of another, reads or writes.
    pub(crate) fn lock(&self) -> io::Result<Turn> {
        self.file.lock()?;
        Ok(Turn(Arc::clone(&self.file)))
    }

    /// Waits until no other handle writes.
    pub(crate) fn lock_to_read(&self) -> io::Result<Turn> {
        self.file.lock_shared()?;
        Ok(Turn(Arc::clone(&self.file)))
    }

    /// Hands every line that was not read yet to `each`, and stops at the first that it refuses.
    pub(crate) fn read_on(
        &mut self,
        mut each: impl FnMut(&str) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let unread = self.unread()?;
        for line in unread.split_inclusive(|byte| *byte == b'\n') {
            // Its writer died before the line was whole, so nobody was told that it counts.
            if !line.ends_with(b"\n") {
                break;
            }
            each(core::str::from_utf8(line).map_err(corrupt)?)?;
            self.end += length(line);
        }
        Ok(())
    }

    /// Appends a line and flushes it to the disk. Needs the turn, and everything read.
    pub(crate) fn append(&mut self, line: &str) -> io::Result<()> {
        self.write(line).inspect_err(|_| {
            // Best effort: part of the line, or a whole one that never reached the disk, is better gone.
            drop(self.file.set_len(self.end));
        })?;
        self.end += length(line.as_bytes());
        Ok(())
    }

    /// Begins to read from the first line again.
    pub(crate) fn rewind(&mut self) {
        self.end = 0;
    }

    fn unread(&self) -> Result<Vec<u8>, StoreError> {
        let length = self.file.metadata().map_err(unavailable)?.len();
        if length < self.end {
            let message = "the journal is shorter than it was";
            return Err(StoreError::new(StoreErrorKind::Corrupt, message));
        }
        let mut bytes = Vec::new();
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.end)).map_err(unavailable)?;
        file.read_to_end(&mut bytes).map_err(unavailable)?;
        Ok(bytes)
    }

    fn write(&self, line: &str) -> io::Result<()> {
        let mut file = &*self.file;
        // Cuts off what a writer left that died in the middle of its line.
        file.set_len(self.end)?;
        file.seek(SeekFrom::Start(self.end))?;
        file.write_all(line.as_bytes())?;
        file.sync_data()
    }
}

/// The file could not be opened, locked or read, so nothing was changed.
pub(crate) fn unavailable(error: io::Error) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the journal cannot be read").with_source(error)
}

/// The file holds what this store never wrote.
pub(crate) fn corrupt(error: impl core::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, "the journal holds a broken line").with_source(error)
}

fn length(line: &[u8]) -> u64 {
    u64::try_from(line.len()).unwrap_or(u64::MAX)
}

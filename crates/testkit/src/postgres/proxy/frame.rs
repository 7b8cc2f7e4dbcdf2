//! The framing of PostgreSQL's protocol, version 3: a type byte, a length that counts itself, a body. Only the very
//! first messages of a client have no type byte.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt as _, BufReader};

const HEADER: usize = 5;
const LENGTH: usize = 4;

/// Longer ones are nonsense: PostgreSQL itself refuses to send or take a gigabyte.
const LENGTH_MAX: usize = 1 << 30;

/// One whole message, as it was on the wire.
#[derive(Debug)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(super) fn kind(&self) -> u8 {
        self.bytes[0]
    }

    /// What follows the length.
    fn body(&self) -> &[u8] {
        &self.bytes[HEADER..]
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The strings that the body begins with, each ended by a NUL on the wire.
    pub(super) fn strings(&self) -> impl Iterator<Item = &[u8]> {
        self.body().split(|byte| *byte == 0)
    }
}

/// Reads messages from one side.
pub(super) struct MessageReader<R> {
    reader: BufReader<R>,
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    pub(super) fn new(reader: R) -> Self {
        Self {
            reader: BufReader::with_capacity(1 << 16, reader),
        }
    }

    /// The next message, or none at the end of the stream.
    pub(super) async fn next(&mut self) -> io::Result<Option<Message>> {
        let mut header = [0; HEADER];
        if self.reader.read(&mut header[..1]).await? == 0 {
            return Ok(None);
        }
        self.reader.read_exact(&mut header[1..]).await?;
        let [_, a, b, c, d] = header;
        let length = checked_length([a, b, c, d], LENGTH)?;
        let mut bytes = vec![0; 1 + length];
        bytes[..HEADER].copy_from_slice(&header);
        self.reader.read_exact(&mut bytes[HEADER..]).await?;
        Ok(Some(Message { bytes }))
    }

    /// One of the client's first messages, and the code that says which.
    pub(super) async fn startup(&mut self) -> io::Result<(u32, Vec<u8>)> {
        let mut length = [0; LENGTH];
        self.reader.read_exact(&mut length).await?;
        let size = checked_length(length, 2 * LENGTH)?;
        let mut bytes = vec![0; size];
        bytes[..LENGTH].copy_from_slice(&length);
        self.reader.read_exact(&mut bytes[LENGTH..]).await?;
        let code = [bytes[4], bytes[5], bytes[6], bytes[7]];
        Ok((u32::from_be_bytes(code), bytes))
    }

    /// The server's one-byte answer to a client that would like to encrypt.
    pub(super) async fn byte(&mut self) -> io::Result<u8> {
        self.reader.read_u8().await
    }

    /// Whether everything that has arrived was read, so that this is the moment to pass it on.
    pub(super) fn is_drained(&self) -> bool {
        self.reader.buffer().is_empty()
    }
}

fn checked_length(bytes: [u8; LENGTH], least: usize) -> io::Result<usize> {
    usize::try_from(u32::from_be_bytes(bytes))
        .ok()
        .filter(|length| (least..LENGTH_MAX).contains(length))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message of impossible length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_are_read_whole_and_one_by_one() {
        let wire: &[u8] = b"P\0\0\0\x0fstmt\0SQL\0\0\0S\0\0\0\x04";
        let mut reader = MessageReader::new(wire);
        let parse = reader.next().await.unwrap().unwrap();
        assert_eq!(parse.kind(), b'P');
        assert_eq!(
            parse.strings().take(2).collect::<Vec<_>>(),
            [&b"stmt"[..], b"SQL"]
        );
        assert!(!reader.is_drained());
        let sync = reader.next().await.unwrap().unwrap();
        assert_eq!(sync.bytes(), b"S\0\0\0\x04");
        assert!(reader.is_drained());
        assert!(reader.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_message_that_is_cut_short_or_too_long_is_an_error() {
        for wire in [
            &b"S\0\0"[..],
            b"S\0\0\0\x05",
            b"S\0\0\0\x03",
            b"S\xff\xff\xff\xff",
        ] {
            assert!(MessageReader::new(wire).next().await.is_err(), "{wire:?}");
        }
        assert!(
            MessageReader::new(&b"\0\0\0\x04"[..])
                .startup()
                .await
                .is_err()
        );
    }
}

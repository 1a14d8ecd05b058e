// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The socket over which two sides exchanged their addresses, while their endpoints are at work: its end is the end of the
//! peer's process.

use crate::stats::Clock;
use gdrfab::error::{Code, Error, Result, errno};
use std::io::ErrorKind;
use std::net::TcpStream;

/// The milliseconds between two looks at the socket, and those that the peer's last messages may take after its end.
const LOOK_MS: u64 = 50;
const LAST_WORDS_MS: u64 = 500;

/// The socket while the endpoints are at work.
pub struct Control {
    socket: TcpStream,
    tick_ms: u64,
    next: u64,
    ended: Option<u64>,
}

impl Control {
    pub fn new(socket: TcpStream, clock: Clock) -> Result<Control> {
        socket.set_nonblocking(true).map_err(|e| failed("the control socket", &e))?;
        Ok(Control { socket, tick_ms: clock.ticks_of_us(1000.0), next: 0, ended: None })
    }

    /// Fails if the peer's process has ended and its messages by other means have had time to arrive.
    pub fn look(&mut self, now: u64) -> Result<()> {
        if let Some(then) = self.ended {
            if now.saturating_sub(then) > LAST_WORDS_MS * self.tick_ms {
                return Err(Error::coded(errno::ECONNRESET, Code::PeerGone, "the peer's process has ended"));
            }
            return Ok(());
        }
        if now < self.next {
            return Ok(());
        }
        self.next = now + LOOK_MS * self.tick_ms;
        match self.socket.peek(&mut [0]) {
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // No data is expected on this socket any more.
            _ => self.ended = Some(now),
        }
        Ok(())
    }
}

pub fn failed(what: &str, e: &std::io::Error) -> Error {
    match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Error::coded(errno::ETIMEDOUT, Code::Deadline, format!("{what}: the peer is silent"))
        }
        ErrorKind::UnexpectedEof => Error::coded(errno::ECONNRESET, Code::PeerGone, format!("{what}: the peer hung up")),
        _ => Error::new(e.raw_os_error().unwrap_or(errno::EIO), format!("{what}: {e}")),
    }
}

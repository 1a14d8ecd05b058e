// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `prov::Lane`: an endpoint that carries parcels for a connectionless endpoint. A parcel is sent as a message. The
//! parcel's bytes begin with words, whose number is the message's remote data.

use super::conn::Conn;
use super::limits::TX_SIZE;
use super::locked::Endpoint;
use super::recv::Unexpected;
use super::state::State;
use crate::error::{Error, Result, errno};
use crate::prov::op::{Iov, total};
use crate::prov::parcel::Flat;
use crate::prov::tcp::stream::tx::QUEUE_MAX;
use crate::prov::tcp::wire::frame::{DATA, Header, Kind, WHOLE_MAX, protocol_error};
use crate::prov::{Lane, ParcelSink};

/// Most words at the beginning of a parcel.
const WORDS: usize = 32;

impl State {
    /// Hands the parcels that arrived to `each`, until `each` refuses one.
    fn take_parcels(&mut self, each: &mut dyn ParcelSink) -> Result<()> {
        while let Some(message) = self.unexpected.front() {
            let Unexpected::Buffered { bytes, data: Some(words), number: None } = message else {
                return Err(protocol_error("a message that is not a lane parcel"));
            };
            let words = usize::try_from(*words).ok().filter(|n| *n <= WORDS && 8 * n <= bytes.len());
            let parcel = Flat { words: words.ok_or_else(|| protocol_error("a lane parcel with more header words than bytes"))?, bytes };
            let len = bytes.len() as u64;
            if !each.take(&parcel) {
                return Ok(());
            }
            self.unexpected.pop_front();
            if let Some(conn) = self.conn.as_deref_mut() {
                conn.count_match(len);
            }
        }
        Ok(())
    }
}

/// True if a parcel can leave now and fits into the peer's window. A parcel that `put` takes counts as sent, and its
/// sender may rest, so no parcel is taken that would have to wait.
fn may_go(conn: &Conn, len: usize) -> bool {
    conn.end_reason.is_none()
        && !conn.tx.blocked
        && conn.outstanding() < TX_SIZE
        && conn.tx.waiting() <= QUEUE_MAX
        && conn.may_go_whole(len as u64)
}

impl Lane for Endpoint {
    fn max(&self) -> usize {
        WHOLE_MAX as usize
    }

    fn put(&self, words: &[u64], bytes: &[Iov]) -> Result<bool> {
        let mut s = self.state.lock();
        let len = total(bytes).unwrap_or(usize::MAX).saturating_add(8 * words.len());
        if words.len() > WORDS || len > WHOLE_MAX as usize {
            return Err(Error::fixed(errno::EMSGSIZE, "internal error: a lane parcel does not fit into one message"));
        }
        let conn = s.up()?;
        if !may_go(conn, len) {
            return Ok(false);
        }
        conn.admit(len as u64);
        conn.put(Header::new(Kind::Send, DATA, len as u64));
        conn.tx.put_word(words.len() as u64);
        words.iter().for_each(|w| conn.tx.put_word(*w));
        conn.tx.put_pieces(bytes);
        s.stats.sends += 1;
        // The caller may not come back soon to send the parcel.
        s.flush();
        match s.conn.as_deref().and_then(|conn| conn.end_reason.clone()) {
            // The parcel was not sent, or reached nobody.
            Some(why) => Err(why),
            None => Ok(true),
        }
    }

    fn take(&self, force: bool, each: &mut dyn ParcelSink) -> bool {
        let Some(mut s) = (if force { Some(self.state.lock()) } else { self.state.try_lock() }) else { return true };
        s.progress(&self.domain, force);
        if let Err(e) = s.take_parcels(each) {
            s.fail_connection(&self.domain, e);
        }
        std::mem::take(&mut s.came) || !s.conn.as_deref().is_some_and(|conn| conn.tx.is_empty() && conn.reads.is_empty())
    }

    fn lose(&self, why: Error) {
        self.state.lock().fail_connection(&self.domain, why);
    }
}

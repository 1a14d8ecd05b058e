// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Receives with `GDRFAB_PEEK`, `GDRFAB_CLAIM` or `GDRFAB_DISCARD`. Such receives look at an unexpected message, reserve
//! it, receive a reserved message, or drop a message.

use crate::error::{Code, Error, Result, errno};
use crate::prov::av::UNSPEC;
use crate::prov::flags::{self, CLAIM, DISCARD, PEEK};
use crate::prov::op::Iov;
use crate::prov::queue::{Completion, Failure};
use crate::rdm::matching::matcher::RecvFilter;
use crate::rdm::parts::reports::origin;
use crate::rdm::peers::outstanding::{OutstandingOp, Recv};
use crate::rdm::peers::unexpected::Unexpected;
use crate::rdm::state::State;
use crate::rdm::wire::parcel::Label;

impl State {
    /// Carries out a receive with the flags `how`: PEEK looks at the oldest message that fits, PEEK with CLAIM reserves it for
    /// the context, and CLAIM alone receives the reserved message. With DISCARD, the message is dropped.
    pub(in crate::rdm) fn probe(&mut self, want: &RecvFilter, recv: Recv, how: u64) -> Result<()> {
        let tagged = recv.tagged;
        if how & PEEK == 0 {
            if how & CLAIM == 0 {
                return Err(Error::new(errno::EBADFLAGS, "flags: GDRFAB_DISCARD goes with GDRFAB_PEEK or GDRFAB_CLAIM"));
            }
            let Some((source, tag, message)) = self.matching.take_claimed(recv.context, tagged) else {
                return Err(Error::invalid("context: GDRFAB_CLAIM needs that of the GDRFAB_PEEK which claimed the message"));
            };
            let recv = if how & DISCARD != 0 { Recv { first: Iov::EMPTY, room: usize::MAX, ..recv } } else { recv };
            match how & DISCARD {
                0 => self.deliver(message, recv, tagged.then_some(tag), source, None),
                _ => self.discard(message, &recv, tagged.then_some(tag), source),
            }
            return Ok(());
        }
        if how & CLAIM != 0 && self.matching.has_claimed(recv.context) {
            return Err(Error::new(errno::EBUSY, "context: it holds a claimed message already; receive or discard that one first"));
        }
        let Some(at) = self.matching.matcher(tagged).find_unexpected(want) else {
            let entry = Completion {
                context: recv.context,
                flags: flags::RECV | if tagged { flags::TAGGED } else { flags::MSG },
                ..Completion::default()
            };
            if let Some(q) = &self.bind.rx {
                let why = Error::fixed(errno::ENOMSG, "no message that fits has come");
                q.fail_from(entry, Failure { error: why, olen: 0, block: 0 }, origin(Some(want.tag), UNSPEC));
            }
            return Ok(());
        };
        let len = self.len_of(tagged, at);
        let Some((source, tag, message)) = self.matching.matcher(tagged).unexpected(at) else { return Ok(()) };
        let data = match message {
            Unexpected::Eager { data, .. } | Unexpected::Offered { data, .. } | Unexpected::Loopback { data, .. } => *data,
        };
        let kind = flags::RECV | if tagged { flags::TAGGED } else { flags::MSG } | if data.is_some() { flags::REMOTE_CQ_DATA } else { 0 };
        if how & (CLAIM | DISCARD) != 0
            && let Some(message) = self.matching.matcher(tagged).remove_unexpected(at)
        {
            match how & DISCARD {
                0 => self.matching.claim(recv.context, (source, tag, tagged), message),
                _ => self.drop_message(message),
            }
        }
        if let Some(q) = &self.bind.rx {
            let entry = Completion { context: recv.context, flags: kind, len, buf: 0, data: data.unwrap_or(0) };
            q.push_from(entry, origin(Some(tag), source));
        }
        Ok(())
    }

    /// Drops a claimed message, and completes the receive that discards it with 0 bytes.
    fn discard(&mut self, message: Unexpected, recv: &Recv, tag: Option<u64>, source: u64) {
        self.drop_message(message);
        self.received(recv, 0, 0, &Label { tag, data: None }, source);
    }

    /// Drops a message. The operation of its sender succeeds.
    fn drop_message(&mut self, message: Unexpected) {
        match message {
            Unexpected::Eager { from, link, bytes, .. } => self.peers.consumed(from, link, bytes.len()),
            Unexpected::Offered { from, link, offer, .. } => {
                if self.peers.get_mut(from).and_then(|p| p.link()).is_some_and(|l| l.number == link) {
                    self.peers.send_done(from, offer.number, Code::None);
                }
            }
            Unexpected::Loopback { number, .. } => {
                if let Some(OutstandingOp::Loopback { completion, .. }) = self.ops.take(number) {
                    self.reports.succeed(&self.bind, &completion);
                }
            }
        }
    }
}

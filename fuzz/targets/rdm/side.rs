// SPDX-License-Identifier: Apache-2.0 OR MIT
//! This side: a connectionless endpoint, and its operations under way.

use crate::input::Input;
use gdrfab::mr::Iov;
use gdrfab::prov::av::{Av, Name, UNSPEC};
use gdrfab::prov::bind::Binding;
use gdrfab::prov::flags::{self, CLAIM, DISCARD, PEEK};
use gdrfab::prov::info::{Ask, Info};
use gdrfab::prov::op::Common;
use gdrfab::prov::ops::OpFlags;
use gdrfab::prov::queue::{Queue, Taken};
use gdrfab::prov::{Endpoint, av};
use gdrfab::rdm;
use gdrfab::sync::serial::Threading;
use std::collections::HashMap;
use std::sync::Arc;

pub struct Side {
    pub ep: Box<dyn Endpoint>,
    queue: Arc<Queue>,
    pub av: Arc<Av>,
    pub name: Name,
    /// Operations that have not ended, each with its buffer; a receive of several messages may give entries before it ends.
    going: HashMap<usize, (Box<[u8]>, bool)>,
    next: usize,
    closed: bool,
}

pub fn info(set: &str) -> Info {
    let ask = Ask { node: None, service: None, source: false, domain: None, near: None };
    rdm::candidates(&ask, |name| name == set).pop().expect("one candidate")
}

impl Side {
    pub fn open(set: &str) -> Side {
        let info = info(set);
        let domain = rdm::get(Some(set)).and_then(|p| p.open_domain(&info, Threading::Safe)).expect("a domain");
        let ep = domain.open_endpoint(&info, 0).expect("an endpoint");
        let queue = Arc::new(Queue::new(100, Threading::Safe).unwrap());
        let av = Arc::new(Av::default());
        ep.bind(Binding::Cq { queue: queue.clone(), source: None, transmit: true, receive: true, selective: false }).expect("bound");
        ep.bind(Binding::Av(av.clone())).expect("bound");
        ep.enable(OpFlags::default()).expect("enabled");
        let name = ep.address().expect("a name").parse().expect("a name");
        Side { ep, queue, av, name, going: HashMap::new(), next: 1, closed: false }
    }

    pub fn weight(&self) -> usize {
        self.going.values().map(|(bytes, _)| bytes.len()).sum()
    }

    fn begin(&mut self, len: usize, several: bool) -> (usize, Iov) {
        let bytes = vec![7u8; len].into_boxed_slice();
        // SAFETY: `self.going` keeps the bytes until the operation has ended.
        let iov = unsafe { Iov::of(&bytes) };
        self.next += 1;
        self.going.insert(self.next, (bytes, several));
        (self.next, iov)
    }

    fn posted(&mut self, context: usize, result: gdrfab::error::Result<()>) {
        if result.is_err() {
            self.going.remove(&context);
        }
    }

    pub fn recv(&mut self, input: &mut Input<'_>) {
        let (how, tag, ignore) = (input.byte(), input.number(), if input.flag() { u64::MAX } else { input.number() });
        // A receive of several messages has no tag.
        let several = how & 6 == 4;
        let (context, iov) = self.begin(input.size(), several);
        let peer = if how & 1 != 0 { av::UNSPEC } else { u64::from(how >> 4 & 1) };
        let timeout_ns = if how & 8 != 0 { 1000 } else { 0 };
        let flags = if several { flags::MULTI_RECV } else { 0 };
        let c = Common { context, peer, flags, timeout_ns, ..Common::default() };
        let result = match how & 2 {
            0 => self.ep.recv(&[iov], &c, &[]),
            _ => self.ep.trecv(&[iov], &c, &[], tag, ignore),
        };
        self.posted(context, result);
    }

    pub fn send(&mut self, input: &mut Input<'_>) {
        let (how, tag, len) = (input.byte(), input.number(), input.size());
        let (context, iov) = self.begin(len, false);
        let inject = if how & 2 != 0 { flags::INJECT } else { 0 };
        let data = if how & 8 != 0 { flags::REMOTE_CQ_DATA } else { 0 };
        let c = Common { context, peer: u64::from(how >> 4 & 1), flags: inject | data, data: tag, ..Common::default() };
        let result = match how & 1 {
            0 => self.ep.send(&[iov], &c, &[]),
            _ => self.ep.tsend(&[iov], &c, &[], tag),
        };
        self.posted(context, result);
    }

    pub fn cancel(&mut self, input: &mut Input<'_>) {
        let _ = self.ep.cancel(self.next.saturating_sub(input.below(8)));
    }

    pub fn peek(&mut self, input: &mut Input<'_>) {
        let (how, tag) = ([PEEK, PEEK | DISCARD, CLAIM, PEEK | CLAIM, CLAIM | DISCARD][input.below(5)], input.number());
        // A claim names its peek by the context.
        let (context, iov) = self.begin(input.size(), false);
        let c = Common { context, peer: UNSPEC, flags: how, ..Common::default() };
        let result = self.ep.trecv(&[iov], &c, &[], tag, u64::MAX);
        self.posted(context, result);
        self.turn();
        if how == PEEK | CLAIM && !self.going.contains_key(&context) {
            let bytes = vec![7u8; 100].into_boxed_slice();
            // SAFETY: `self.going` keeps the bytes until the operation has ended.
            let iov = unsafe { Iov::of(&bytes) };
            self.going.insert(context, (bytes, false));
            let c = Common { flags: if input.flag() { CLAIM } else { CLAIM | DISCARD }, ..c };
            let result = self.ep.trecv(&[iov], &c, &[], tag, u64::MAX);
            self.posted(context, result);
        }
    }

    pub fn turn(&mut self) {
        if !self.closed {
            self.ep.progress(true);
        }
        loop {
            let mut ended = Vec::new();
            match self.queue.take_from(64, |_, c, _| ended.push((c.context, c.flags))) {
                Taken::Some(_) => {}
                Taken::Empty => return,
                Taken::ErrorFirst => ended.extend(self.queue.take_error().map(|(c, ..)| (c.context, c.flags))),
            }
            for (context, how) in ended {
                // A write of the peer's has no context.
                if context == 0 {
                    continue;
                }
                let several = self.going.get(&context).map(|(_, several)| *several);
                assert!(several.is_some(), "an operation has ended twice, or never began");
                if several == Some(false) || how & flags::MULTI_RECV != 0 {
                    self.going.remove(&context);
                }
            }
        }
    }

    pub fn close(mut self) {
        self.ep.close().expect("it closes");
        self.closed = true;
        self.turn();
        // A message that was claimed and never received ends with the endpoint.
        assert!(self.going.is_empty(), "{} operations never ended", self.going.len());
    }
}

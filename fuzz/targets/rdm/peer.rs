// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The peer: an endpoint of the lane's provider, through which it can send anything.

use crate::input::Input;
use crate::side::{Side, info};
use gdrfab::error::Code;
use gdrfab::mr::Iov;
use gdrfab::prov::bind::Binding;
use gdrfab::prov::info::Info;
use gdrfab::prov::name::Name;
use gdrfab::prov::op::RmaIov;
use gdrfab::prov::ops::OpFlags;
use gdrfab::prov::{self, Endpoint, EventQueue, Parcel, ParcelSink, Queue, flags};
use gdrfab::rdm::wire::hello::Intro;
use gdrfab::rdm::wire::parcel::{ParcelHead, ParcelWords};
use gdrfab::sync::cursor::ShortMessage;
use gdrfab::sync::serial::Threading;
use std::sync::Arc;

pub struct Peer {
    ep: Box<dyn Endpoint>,
    bytes: Vec<u8>,
    /// Offers that were received.
    offers: Vec<u64>,
}

/// Records received offers.
struct Ear<'a>(&'a mut Vec<u64>);

impl ParcelSink for Ear<'_> {
    fn take(&mut self, parcel: &dyn Parcel) -> bool {
        if let ParcelHead::Offer(_, offer) = ParcelHead::of(parcel).expect("the library says what it understands") {
            self.0.push(offer.number);
        }
        true
    }

    fn take_short(&mut self, parcel: ShortMessage<'_>) -> bool {
        self.take(&parcel)
    }
}

impl Peer {
    /// Connects as another connectionless endpoint would, or nearly so.
    pub fn dial(lane: &'static str, side: &mut Side, input: &mut Input<'_>) -> Option<Peer> {
        let own: Name = "rdm://192.0.2.1:7000".parse().expect("a name");
        let name = own.of(1 + u64::from(input.byte()));
        side.av.insert(name).expect("inserted");
        side.av.insert(side.name).expect("inserted");
        let info = info(lane);
        let info = Info { mr_mode: info.mr_mode & !flags::MR_MODE_PROV_KEY, ..info };
        let domain = prov::get(Some(lane)).and_then(|p| p.open_domain(&info, Threading::Safe)).expect("a domain");
        let ep = domain.open_endpoint(&info, 0).expect("an endpoint");
        let (queue, events) = (Arc::new(Queue::new(1 << 20, Threading::Safe).unwrap()), Arc::new(EventQueue::default()));
        ep.bind(Binding::Cq { queue, source: None, transmit: true, receive: true, selective: false }).expect("bound");
        ep.bind(Binding::Eq(events.clone())).expect("bound");
        ep.bind(Binding::Arrivals(1)).expect("bound");
        ep.enable(OpFlags::default()).expect("enabled");
        let expected_nonce = if input.below(8) == 0 { input.number() } else { 0 };
        let mut intro = Intro { name, expected_nonce, grant: input.number() << input.below(24) }.encode();
        if input.below(16) == 0 {
            let at = input.below(intro.len());
            intro[at] ^= input.byte();
        }
        let at = side.name.socket().to_string();
        let address = if lane == "shm" { format!("shm://rdm.{}", at.replace(':', "_")) } else { format!("{lane}://{at}") };
        ep.connect(&address, &intro).expect("it calls");
        for _ in 0..100_000 {
            side.turn();
            ep.progress(true);
            if let Some((_, Some(event))) = events.take_if(|_| (true, ())) {
                side.turn();
                return event.error.is_none().then_some(Peer { ep, bytes: vec![9; 1 << 20], offers: Vec::new() });
            }
        }
        panic!("no answer came");
    }

    pub fn put(&mut self, words: &[u64], len: usize) {
        // SAFETY: the peer's bytes live as long as the peer, and so longer than this call.
        let bytes = unsafe { Iov::of(&self.bytes[..len.min(self.bytes.len())]) };
        if let Some(lane) = self.ep.lane() {
            let _ = lane.put(words, &[bytes]);
        }
        self.ep.progress(true);
    }

    pub fn places(&mut self, input: &mut Input<'_>) -> Vec<RmaIov> {
        let own = self.bytes.as_ptr() as u64;
        (0..input.below(10)).map(|_| RmaIov { addr: own, len: input.size(), key: input.number() }).take(8).collect()
    }

    /// Takes incoming packets and records the offers among them.
    pub fn hear(&mut self) {
        if let Some(lane) = self.ep.lane() {
            lane.take(true, &mut Ear(&mut self.offers));
        }
    }

    /// Withdraws an offer, or one that never existed.
    pub fn withdraw(&mut self, input: &mut Input<'_>) {
        self.put(ParcelWords::withdraw(input.number()).as_slice(), 0);
    }

    /// Reports an offer as taken, perhaps twice, or one that never existed.
    pub fn answer(&mut self, input: &mut Input<'_>) {
        let number = match input.byte() {
            how if how & 3 != 0 => self.offers.pop().unwrap_or(1 << 32),
            how if how & 4 != 0 => self.offers.last().copied().unwrap_or(0),
            _ => input.number(),
        };
        self.put(ParcelWords::done(number, Code(i32::from(input.byte() % 16))).as_slice(), 0);
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.ep.close();
    }
}

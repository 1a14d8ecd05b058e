// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A peer that lies about lengths, counts and credit. The peer builds its parcels by hand, on an endpoint of the lane's
//! own provider. The library disconnects the peer with a reason, and serves other peers.

use super::*;
use crate::prov::{self, EventQueue, Parcel, ParcelSink};
use crate::rdm::limits::{EAGER_MAX, FIRST_GRANT, OFFERS_MAX};
use crate::rdm::wire::hello::Intro;
use crate::rdm::wire::parcel::{Label, OVERHEAD, ParcelWords, eager, kind};
use crate::sync::cursor::ShortMessage;

pub struct HostilePeer {
    ep: Box<dyn Endpoint>,
    name: Name,
    _domain: Arc<dyn Domain>,
}

impl HostilePeer {
    pub fn call(lane: &str, to: &mut Side) -> HostilePeer {
        let name: Name = "rdm://192.0.2.1:7000/0000000000000001/0000000000000001".parse().unwrap();
        to.av.insert(name).unwrap();
        let info = info(lane);
        let info = Info { mr_mode: info.mr_mode & !flags::MR_MODE_PROV_KEY, ..info };
        let domain = prov::get(Some(lane)).unwrap().open_domain(&info, Threading::Safe).unwrap();
        let ep = domain.clone().open_endpoint(&info, 0).unwrap();
        let (queue, events) = (Arc::new(Queue::new(1000, Threading::Safe).unwrap()), Arc::new(EventQueue::default()));
        ep.bind(Binding::Cq { queue, source: None, transmit: true, receive: true, selective: false }).unwrap();
        ep.bind(Binding::Eq(events.clone())).unwrap();
        ep.bind(Binding::Arrivals(1)).unwrap();
        ep.enable(OpFlags::default()).unwrap();
        let at = to.name.socket().to_string();
        let address = if lane == "shm" { format!("shm://rdm.{}", at.replace(':', "_")) } else { format!("{lane}://{at}") };
        ep.connect(&address, &Intro { name, expected_nonce: to.name.nonce, grant: FIRST_GRANT }.encode()).unwrap();
        let begun = Instant::now();
        while events.is_empty() {
            to.turn();
            ep.progress(true);
            assert!(begun.elapsed() < Duration::from_secs(20), "no answer");
        }
        HostilePeer { ep, name, _domain: domain }
    }

    pub fn say(&self, words: &[u64], bytes: &[u8]) {
        let _ = self.ep.lane().unwrap().put(words, &[iov(bytes)]);
        self.ep.progress(true);
    }

    /// As `say`, but reads no answer. False if the other side has disconnected.
    fn say_without_reading(&self, to: &mut Side, words: &ParcelWords) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(20) {
            to.turn();
            if !to.failed.is_empty() {
                return false;
            }
            if self.ep.lane().unwrap().put(words.as_slice(), &[]).is_ok_and(|put| put) {
                return true;
            }
        }
        panic!("the lane has no room");
    }
}

/// A part of the reason for which a liar is disconnected, and the parcels that it sends until then.
type HostileParcels = (&'static str, fn(&HostilePeer));

const LIES: &[HostileParcels] = &[
    ("more than it was granted", |hostile| {
        let (words, count) = eager(&Label::default());
        (0..FIRST_GRANT / (8000 + OVERHEAD) + 1).for_each(|_| hostile.say(&words[..count], &[7; 8000]));
    }),
    ("counts what was not sent", |hostile| hostile.say(ParcelWords::credit(1 << 40, FIRST_GRANT).as_slice(), &[])),
    ("takes back what it granted", |hostile| hostile.say(ParcelWords::credit(0, 1).as_slice(), &[])),
    ("never made", |hostile| hostile.say(ParcelWords::done(77 << 32 | 1, Code::None).as_slice(), &[])),
    ("do not make its length", |hostile| {
        let place = RmaIov { addr: 4096, len: 10, key: 1 };
        hostile.say(ParcelWords::offer(&Label::default(), 1, 11, &[place]).as_slice(), &[]);
    }),
    ("two messages under one number", |hostile| {
        let place = RmaIov { addr: 4096, len: 10, key: 1 };
        (0..2).for_each(|_| hostile.say(ParcelWords::offer(&Label::default(), 1, 10, &[place]).as_slice(), &[]));
    }),
    ("more than a message may have", |hostile| {
        let place = RmaIov { addr: 4096, len: 1 << 50, key: 1 };
        hostile.say(ParcelWords::offer(&Label::default(), 1, 1 << 50, &[place]).as_slice(), &[]);
    }),
    ("another length than its kind", |hostile| hostile.say(&[u64::from(kind::CREDIT), 1], &[])),
    ("does not exist", |hostile| hostile.say(&[99], &[])),
];

#[test]
fn a_peer_that_lies_is_cut_off_and_others_are_served() {
    for lane in ["shm", "tcp"] {
        for (words, lie) in LIES {
            let (mut a, mut b) = pair(lane);
            let hostile = HostilePeer::call(lane, &mut a);
            let index = a.av.find(&hostile.name).unwrap();
            let (mut never, mut word) = ([0; 8], [0; 8]);
            a.recv(index, &mut never, 5, 0, 1);
            a.recv(UNSPEC, &mut word, 6, 0, 2);
            lie(&hostile);
            until(&mut [&mut a], |s| !s[0].failed.is_empty());
            let (_, why, _) = a.take_failed(1).expect("what only it could fill");
            assert_eq!((why.error.errno, why.error.code), (errno::EPROTO, Code::PeerBroke), "{lane}: {words}");
            assert!(why.error.words.contains(words), "{lane}: {} for {words}", why.error.words);
            b.send(0, b"served", 6, 3);
            both(&mut a, &mut b, |s| s[0].take(2).is_some());
            assert!(word.starts_with(b"served") && a.failed.is_empty() && a.done.is_empty());
            drop(hostile);
            a.ep.close().unwrap();
        }
    }
}

/// Answers that a peer does not read from its lane are kept, but no more than the offers that the peer may make.
#[test]
fn answers_to_a_peer_that_reads_none_are_bounded() {
    let (mut a, _b) = pair("shm");
    let hostile = HostilePeer::call("shm", &mut a);
    let (index, mut never) = (a.av.find(&hostile.name).unwrap(), [0; 8]);
    a.recv(index, &mut never, 5, 0, 1);
    for number in 0..2 * OFFERS_MAX as u64 {
        let offer = ParcelWords::offer(&Label { tag: Some(9), data: None }, number, 0, &[]);
        if !hostile.say_without_reading(&mut a, &offer) || !hostile.say_without_reading(&mut a, &ParcelWords::withdraw(number)) {
            break;
        }
    }
    until(&mut [&mut a], |s| !s[0].failed.is_empty());
    let (_, why, _) = a.take_failed(1).unwrap();
    assert!(why.error.words.contains("offers more messages"), "{}", why.error.words);
}

/// An offer that waits for room in the lane was not made yet. The peer cannot answer the offer, and each message
/// completes once.
#[test]
fn an_offer_that_was_not_made_cannot_be_answered() {
    const COUNT: usize = 6000;
    struct First(Option<u64>);
    impl ParcelSink for First {
        fn take(&mut self, parcel: &dyn Parcel) -> bool {
            self.0 = Some(parcel.word(1));
            true
        }
        fn take_short(&mut self, parcel: ShortMessage<'_>) -> bool {
            self.take(&parcel)
        }
    }
    let (mut a, _b) = pair("shm");
    let hostile = HostilePeer::call("shm", &mut a);
    let (index, long) = (a.av.find(&hostile.name).unwrap(), vec![1; EAGER_MAX + 1]);
    a.send(index, &long, 1, 1000);
    let mut first = First(None);
    while first.0.is_none() {
        a.turn();
        hostile.ep.lane().unwrap().take_all(&mut first);
    }
    (1..COUNT).for_each(|i| a.send(index, &long, 1, 1000 + i));
    for i in 0..COUNT as u64 {
        if !hostile.say_without_reading(&mut a, &ParcelWords::done(first.0.unwrap() + i, Code::None)) {
            break;
        }
    }
    until(&mut [&mut a], |s| s[0].done.len() + s[0].failed.len() >= COUNT);
    let mut ended: Vec<_> = a.done.iter().map(|(c, _)| c.context).chain(a.failed.iter().map(|(c, ..)| c.context)).collect();
    ended.sort_unstable();
    assert!(ended.into_iter().eq(1000..1000 + COUNT), "each once");
    assert!(!a.done.is_empty() && a.failed.iter().any(|(_, why, _)| why.error.words.contains("never made")), "{:?}", a.failed.first());
}

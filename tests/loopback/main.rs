// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the contract of a provider with an example that keeps it (`provider.rs`); see docs/architecture.md, "Adding a provider".

mod provider;

use gdrfab::error::{Result, errno};
use gdrfab::mr::{Access, Attr, Iov, Paths, RegionId, Source};
use gdrfab::prov::bind::Binding;
use gdrfab::prov::general::EndpointCore;
use gdrfab::prov::info::{Ask, Info};
use gdrfab::prov::op::Common;
use gdrfab::prov::ops::{OpFlags, Owner};
use gdrfab::prov::queue::Taken;
use gdrfab::prov::{Completion, Domain, Event, EventKind, EventQueue, PassiveEndpoint, Provider, Queue};
use gdrfab::sync::serial::Threading;
use provider::{Loopback, SCHEME};
use std::ptr::null_mut;
use std::sync::Arc;

/// An endpoint with its queues, as the layer above has it: operations go through the default table.
struct Side {
    domain: Arc<dyn Domain>,
    core: EndpointCore,
    cq: Arc<Queue>,
    eq: Arc<EventQueue>,
}

impl Side {
    fn new(context: usize) -> Side {
        let domain = Loopback.open_domain(&Info::default(), Threading::Safe).unwrap();
        let core =
            EndpointCore::new(domain.clone().open_endpoint(&Info::default(), context).unwrap(), Owner::here(), OpFlags::default(), 1)
                .unwrap();
        let (cq, eq) = (Arc::new(Queue::new(16, Threading::Safe).unwrap()), Arc::new(EventQueue::default()));
        let ep = core.prov();
        assert_eq!(core.enable().unwrap_err().errno, errno::ENOCQ);
        ep.bind(Binding::Cq { queue: cq.clone(), source: None, transmit: true, receive: true, selective: false }).unwrap();
        ep.bind(Binding::Eq(eq.clone())).unwrap();
        assert_eq!(ep.bind(Binding::Eq(eq.clone())).unwrap_err().errno, errno::EBUSY);
        core.enable().unwrap();
        assert_eq!(core.enable().unwrap_err().errno, errno::EOPBADSTATE);
        Side { domain, core, cq, eq }
    }

    fn event(&self) -> Event {
        self.eq.take_if(|_| (true, ())).expect("an event").1.expect("taken")
    }

    fn entry(&self) -> std::result::Result<Completion, i32> {
        self.core.prov().progress(false);
        let mut got = None;
        match self.cq.take(1, |_, c| got = Some(*c)) {
            Taken::ErrorFirst => Err(self.cq.take_error().expect("an error").1.error.errno),
            _ => Ok(got.expect("an entry")),
        }
    }

    fn register(&self, bytes: &[u8], access: Access) -> RegionId {
        // SAFETY: the bytes outlive the call, which copies them.
        let one = [unsafe { Iov::of(bytes) }];
        self.domain.register(&Attr { source: Source::Iov(&one), ..Attr::plain(access) }).unwrap()
    }
}

fn listener(name: &str) -> (PassiveEndpoint, Arc<EventQueue>) {
    let ask = Ask { node: None, service: Some(name), source: true, domain: None, near: None };
    let info = Loopback.candidates(&ask).remove(0);
    let (pep, events) = (PassiveEndpoint::new(Loopback.open_listener(&info).unwrap(), 7), Arc::new(EventQueue::default()));
    pep.bind(events.clone()).unwrap();
    pep.listen().unwrap();
    (pep, events)
}

fn connected(name: &str) -> (Side, Side) {
    let (client, server) = (Side::new(1), Side::new(2));
    let (pep, events) = listener(name);
    client.core.prov().connect(pep.address(), b"hello").unwrap();
    pep.announce(pep.poll());
    let (_, asked) = events.take_if(|_| (true, ())).unwrap();
    let request = asked.unwrap().request.expect("a request");
    assert_eq!(request.data(), b"hello");
    server.core.prov().accept(request, b"welcome").unwrap();
    let event = client.event();
    assert_eq!((event.kind, event.context, &event.data[..]), (EventKind::Connected as u32, 1, &b"welcome"[..]));
    assert_eq!(server.event().kind, EventKind::Connected as u32);
    (client, server)
}

#[test]
fn bytes_are_written_and_read_and_messages_arrive() {
    let (client, server) = connected("bytes");
    let (mut here, there) = (*b"12345678", [0u8; 16]);
    let mr = server.register(&there, Access::REMOTE_WRITE | Access::REMOTE_READ);
    let (ep, ops) = (client.core.head(), client.core.head().ops());
    let (base, buf) = (there.as_ptr() as u64, here.as_mut_ptr().cast());
    let raw = (&raw const client.core).cast();
    // SAFETY: both arrays outlive the operations, which are over when they return; the endpoint is open.
    unsafe {
        assert_eq!((ops.write)(raw, buf, 8, null_mut(), 0, base + 8, mr.key, 11 as *mut _), 0);
        assert_eq!((client.entry().unwrap().context, &there[8..]), (11, &b"12345678"[..]));
        here = [0; 8];
        assert_eq!((ops.read)(raw, buf, 4, null_mut(), 0, base + 12, mr.key, 12 as *mut _), 0);
        assert_eq!((client.entry().unwrap().context, &here[..4]), (12, &b"5678"[..]));
        // An operation that the remote side refuses is an error entry.
        for (addr, key, why) in [(base + 9, mr.key, errno::ERANGE), (base, mr.key + 1, errno::EKEYREJECTED)] {
            assert_eq!((ops.write)(raw, buf, 8, null_mut(), 0, addr, key, null_mut()), 0);
            assert_eq!(client.entry().err(), Some(why));
        }
        // The message waits for its receive.
        assert_eq!((ops.send)(raw, buf, 4, null_mut(), 0, 13 as *mut _), 0);
        assert_eq!(client.entry().unwrap().context, 13);
    }
    let mut room = [0u8; 8];
    // SAFETY: the room outlives the operation.
    let pieces = [unsafe { Iov::new(room.as_mut_ptr() as usize, 8) }];
    server.core.prov().recv(&pieces, &Common { context: 14, ..Common::default() }, &[]).unwrap();
    let entry = server.entry().unwrap();
    assert_eq!((entry.context, entry.len, &room[..4]), (14, 4, &b"5678"[..]));
    assert_eq!(client.core.prov().report(0, mr.key, 0).unwrap().path, Paths::DIRECT);
    assert!(ep.is_here() && client.core.prov().stats().of(Paths::DIRECT).bytes == 12);
}

#[test]
fn what_is_in_use_is_busy_and_a_closed_end_is_told() {
    let (client, server) = connected("close");
    let addr = server.domain.allocate(4096).unwrap();
    // SAFETY: allocated above, and zeroed.
    let mr = server.register(unsafe { std::slice::from_raw_parts(addr as *const u8, 4096) }, Access::REMOTE_WRITE);
    assert_eq!(server.domain.in_use(), (1, 1));
    assert_eq!(server.domain.free(addr).unwrap_err().errno, errno::EBUSY);
    server.domain.close_region(mr).unwrap();
    assert!(server.domain.close_region(mr).is_err() && server.domain.facts(mr).is_err());
    server.domain.free(addr).unwrap();
    assert_eq!(server.domain.in_use(), (0, 0));

    client.core.prov().recv(&[], &Common { context: 5, ..Common::default() }, &[]).unwrap();
    server.core.prov().close().unwrap();
    assert_eq!(client.event().kind, EventKind::Shutdown as u32);
    assert_eq!(client.entry().err(), Some(errno::ECONNRESET));
    assert_eq!(client.core.prov().send(&[], &Common::default(), &[]).unwrap_err().errno, errno::ENOTCONN);
    client.core.prov().close().unwrap();
}

#[test]
fn who_is_not_wanted_is_told() -> Result<()> {
    let (pep, events) = listener("rejects");
    let twice = Loopback.open_listener(&Info { src_addr: Some(pep.address().into()), ..Info::default() })?.listen();
    assert_eq!(twice.unwrap_err().errno, errno::EADDRINUSE);
    for dropped in [false, true] {
        let client = Side::new(1);
        assert_eq!(client.core.prov().connect(&format!("{SCHEME}nobody"), b"").unwrap_err().errno, errno::ECONNREFUSED);
        client.core.prov().connect(pep.address(), b"")?;
        pep.announce(pep.poll());
        let request = events.take_if(|_| (true, ())).unwrap().1.unwrap().request.unwrap();
        if dropped {
            drop(request)
        } else {
            request.reject(b"no")?
        }
        let event = client.event();
        assert_eq!((event.error.unwrap().errno, event.data.len()), (errno::ECONNREFUSED, if dropped { 0 } else { 2 }));
    }
    Ok(())
}

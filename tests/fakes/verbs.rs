// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shared by the tests of the verbs provider against the fake libibverbs: a domain with its queues, and endpoints that are connected to
//! each other.

#![allow(dead_code, reason = "each test is a crate of its own and uses a part of this")]

use crate::fakes::{self, Case};
use gdrfab::error::{Error, Result};
use gdrfab::fabric::{self, Av, Cq, CqFormat, Domain, Endpoint, Eq, Fabric, Info, Mr};
use gdrfab::mr::{Access, PathPolicy};
use gdrfab::mr::{Attr, Memory, Source};
use gdrfab::prov::flags;
use gdrfab::prov::op::{Common, Dir, Iov, RmaIov};
use gdrfab::prov::queue::{Completion, Taken};
use libloading::os::unix::Library;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::sync::Arc;

/// The environment: the fake libibverbs, and no librdmacm, because the real one would load the real libibverbs.
pub const LIB: (&str, &str) = ("GDRFAB_DEBUG", "ibverbs=libibverbs.so.1,rdmacm=/nowhere/librdmacm.so.1");

/// Runs the cases, if there is a fake libibverbs.
pub fn each(cases: &[Case]) {
    let there = std::env::var_os("GDRFAB_FAKES").is_some_and(|dir| Path::new(&dir).join("verbs/libibverbs.so.1").exists());
    if !there && std::env::var_os("CASE").is_none() {
        println!("skipped: GDRFAB_FAKES has no verbs/libibverbs.so.1, which is built where infiniband/verbs.h is");
        return;
    }
    fakes::each(cases, &[]);
}

pub fn hints() -> Info {
    Info { prov_name: Some("verbs".into()), mr_mode: 0x1ffc, ..Info::default() }
}

pub fn list(flags: u64, hints: &Info) -> Result<Vec<Info>> {
    fabric::getinfo(None, None, flags, Some(hints))
}

pub fn domains(infos: &[Info]) -> Vec<&str> {
    infos.iter().filter_map(|i| i.domain_name.as_deref()).collect()
}

pub fn lives() -> i32 {
    // SAFETY: the fake is loaded already; the prototype is the fake's own.
    unsafe { Library::new("libibverbs.so.1").unwrap().get::<unsafe extern "C" fn() -> c_int>(b"fake_verbs_objects\0").unwrap()() }
}

fn counter(name: &[u8]) -> i32 {
    // SAFETY: the fake is loaded already; the prototype is the fake's own.
    unsafe { Library::new("libibverbs.so.1").unwrap().get::<unsafe extern "C" fn() -> c_int>(name).unwrap()() }
}

/// The number of work requests that asked for a fence.
pub fn fences() -> i32 {
    counter(b"fake_verbs_fences\0")
}

/// The number of calls that posted work requests, and of the work requests.
pub fn posted() -> [i32; 2] {
    [counter(b"fake_verbs_bells\0"), counter(b"fake_verbs_requests\0")]
}

/// The last atomic operation: opcode, remote address, compare or add operand, swap operand, remote key and bytes.
pub fn last_atomic() -> [u64; 6] {
    // SAFETY: the fake is loaded already and the prototype is its own; the array belongs to the fake, and stays.
    unsafe { *Library::new("libibverbs.so.1").unwrap().get::<unsafe extern "C" fn() -> *const [u64; 6]>(b"fake_verbs_atomic\0").unwrap()() }
}

pub fn raise(kind: i32, port: c_int) {
    type Raise = unsafe extern "C" fn(c_int, *mut c_void, c_int);
    // SAFETY: the fake is loaded already and the prototype is its own; without an element the event is about the port.
    unsafe { Library::new("libibverbs.so.1").unwrap().get::<Raise>(b"fake_verbs_raise\0").unwrap()(kind, std::ptr::null_mut(), port) }
}

/// A domain with its queues.
pub struct World {
    pub info: Info,
    pub domain: Arc<Domain>,
    pub cq: Arc<Cq>,
    pub eq: Arc<Eq>,
}

impl World {
    pub fn new() -> World {
        Self::of(hints(), 64)
    }

    /// Endpoints with room for eight operations.
    pub fn small() -> World {
        World::with_sends(8)
    }

    pub fn with_sends(tx_size: usize) -> World {
        let world = World::new();
        World { info: Info { tx_size, ..world.info }, ..world }
    }

    pub fn of(hints: Info, cq_size: usize) -> World {
        let info = list(0, &hints).unwrap().remove(0);
        let fabric = Fabric::open(&info).unwrap();
        let domain = Domain::open(&fabric, &info, None).unwrap();
        let cq = Cq::open(&domain, cq_size, CqFormat::Data, false).unwrap();
        let eq = Eq::open(&fabric, false).unwrap();
        World { info, domain, cq, eq }
    }

    pub fn endpoint(&self, selective: bool) -> Result<Arc<Endpoint>> {
        let ep = Endpoint::open(&self.domain, &self.info, 7)?;
        let selective = if selective { flags::SELECTIVE_COMPLETION } else { 0 };
        ep.bind_cq(&self.cq, flags::SEND | flags::RECV | selective)?;
        ep.bind_eq(&self.eq, 0)?;
        if self.info.ep_type == fabric::EP_RDM {
            ep.bind_av(&Av::open(&self.domain)?, 0)?;
        }
        ep.enable().inspect_err(|_| ep.close().unwrap())?;
        Ok(ep)
    }

    /// Two endpoints that are connected to each other.
    pub fn pair(&self, selective: bool) -> (Arc<Endpoint>, Arc<Endpoint>) {
        let (a, b) = (self.endpoint(selective).unwrap(), self.endpoint(selective).unwrap());
        let (at_a, at_b) = (a.address().unwrap(), b.address().unwrap());
        a.connect_addr(&at_b).unwrap();
        b.connect_addr(&at_a).unwrap();
        assert_eq!([self.event(), self.event()].map(|e| e.0), [2, 2], "two are connected");
        (a, b)
    }

    pub fn register(&self, attr: Attr<'_>) -> Result<Box<Mr>> {
        self.domain.register(&attr)
    }

    /// The next event: its kind, its bytes, its error.
    pub fn event(&self) -> (u32, Vec<u8>, Option<Error>) {
        let event = self.eq.sread(2000, |_| (true, ())).unwrap().expect("an event").1.expect("an event");
        (event.kind, event.data, event.error)
    }

    pub fn read(&self) -> (Taken, Vec<Completion>) {
        let mut found = Vec::new();
        let taken = self.cq.read(64, |_, c| found.push(*c));
        (taken, found)
    }

    /// The next entries, until there are no more: one read returns those that come by the same path.
    pub fn entries(&self) -> Vec<Completion> {
        let mut all = Vec::new();
        while let (Taken::Some(_), found) = self.read() {
            all.extend(found);
        }
        all
    }

    /// The next `count` entries, which fault injection may delay.
    pub fn entries_of(&self, count: usize) -> Vec<Completion> {
        let mut all = Vec::new();
        while all.len() < count {
            match self.cq.sread(count, 2000, |_, c| all.push(*c)).unwrap() {
                Taken::Some(_) => {}
                other => panic!("{} of {count} entries, then {other:?}", all.len()),
            }
        }
        all
    }

    /// The contexts of the next entries.
    pub fn contexts(&self) -> Vec<usize> {
        self.entries().iter().map(|c| c.context).collect()
    }
}

pub fn memory(iovs: &[Iov]) -> Attr<'_> {
    Attr {
        source: Source::Iov(iovs),
        memory: Memory::Host,
        access: Access::all() - Access::ATOMIC,
        offset: 0,
        requested_key: 0,
        policy: PathPolicy::default(),
        rma_event: false,
    }
}

pub fn iov(bytes: &[u8]) -> Iov {
    named(bytes.as_ptr() as usize, bytes.len())
}

/// A piece at any address, mapped or not: the fake moves no bytes.
pub fn named(addr: usize, len: usize) -> Iov {
    // SAFETY: the tests keep mapped memory until all operations have ended, and no code touches unmapped addresses.
    unsafe { Iov::new(addr, len) }
}

pub fn write(ep: &Endpoint, local: Iov, desc: u64, context: usize, flags: u64) -> Result<()> {
    let to = [RmaIov { addr: 0x1000, len: local.len(), key: 0x100 }];
    ep.rma(Dir::Write, &[local], &to, &Common { context, flags, ..Common::default() }, &[desc])
}

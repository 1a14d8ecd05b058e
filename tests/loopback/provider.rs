// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A provider that reaches endpoints of the same process: the smallest one that keeps the contract of `prov::contract`. It has no table of
//! operations and no thread. The posting thread copies, so each operation except a receive is over at once.

use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::hmem::{MemoryKind, Site};
use gdrfab::mr::alloc::Allocations;
use gdrfab::mr::location::extent;
use gdrfab::mr::piece::{load, store};
use gdrfab::mr::region::{Location, Pieces, Region};
use gdrfab::mr::registry::{KeyOf, Registry};
use gdrfab::mr::{Access, Attr, Facts, Iov, Paths, RegionId, Source as Memory};
use gdrfab::prov::bind::{Binding, Bindings, Ending, Options, PART, Stage};
use gdrfab::prov::info::{Ask, Info};
use gdrfab::prov::op::{Common, Dir, RmaIov, measure, total};
use gdrfab::prov::ops::OpFlags;
use gdrfab::prov::queue::Failure;
use gdrfab::prov::report::{PathReport, Refusals, Stats};
use gdrfab::prov::request::own_request;
use gdrfab::prov::{Completion, Domain, Endpoint, EventKind, Listener, Offer, Provider, Request, flags};
use gdrfab::sync::serial::Threading;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

pub const SCHEME: &str = "loopback://";
const MAX_MSG: usize = 1 << 30;

pub struct Loopback;

impl Provider for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn offer(&self) -> Offer {
        Offer { name: self.name(), usable: Ok(()), facts: vec![("reach".into(), Ok("endpoints of this process".into()))] }
    }

    fn candidates(&self, ask: &Ask<'_>) -> Vec<Info> {
        let address = ask.service.map(|name| format!("{SCHEME}{name}"));
        let (src_addr, dest_addr) = if ask.source { (address, None) } else { (None, address) };
        vec![Info { paths: Paths::DIRECT, max_msg_size: MAX_MSG, src_addr, dest_addr, ..Info::of_cpu(self.name()) }]
    }

    fn check_address(&self, address: &str) -> Result<()> {
        let name = address.strip_prefix(SCHEME).filter(|name| !name.is_empty());
        name.map(drop).ok_or_else(|| Error::invalid(format!("addr: {address:?} is not {SCHEME}NAME")))
    }

    fn open_domain(&self, _info: &Info, _threading: Threading) -> Result<Arc<dyn Domain>> {
        Ok(Arc::new(Local { regions: Arc::new(Mutex::new(Regions::new(0)?)), memory: Allocations::default() }))
    }

    fn open_listener(&self, info: &Info) -> Result<Box<dyn Listener>> {
        let address = info.src_addr.clone().ok_or_else(|| Error::invalid("info->src_addr: missing"))?;
        self.check_address(&address)?;
        Ok(Box::new(Waits { address, calls: Arc::default() }))
    }
}

type Regions = Registry<Region<(), ()>>;

struct Local {
    /// A copy holds the lock, so that the thread that closes a region knows that no copy is inside.
    regions: Arc<Mutex<Regions>>,
    memory: Allocations,
}

impl Domain for Local {
    fn in_use(&self) -> (usize, usize) {
        (self.regions.lock().open_count(), self.memory.count())
    }

    fn open_endpoint(self: Arc<Self>, _info: &Info, context: usize) -> Result<Box<dyn Endpoint>> {
        Ok(Box::new(Ep(Arc::new(End { regions: self.regions.clone(), context, state: Mutex::default() }))))
    }

    fn register(&self, attr: &Attr<'_>) -> Result<RegionId> {
        let Memory::Iov(iovs) = attr.source else { return Err(Error::invalid("attr: host memory is expected")) };
        let (base, len) = extent(iovs)?;
        let location = Location { pieces: Pieces::of(iovs, |_| ()), base, len, site: Site::HOST, kind: MemoryKind::Host };
        let mut regions = self.regions.lock();
        let names = regions.reserve(KeyOf::Domain, false)?;
        Ok(regions.fill(names, Region::new(attr, names.key, base, Paths::DIRECT, location, ())))
    }

    fn close_region(&self, id: RegionId) -> Result<()> {
        let mut regions = self.regions.lock();
        regions.shut(id)?;
        regions.drop_region(id);
        Ok(())
    }

    fn facts(&self, id: RegionId) -> Result<Facts> {
        self.regions.lock().facts(id)
    }

    fn explain_region(&self, id: RegionId) -> Result<String> {
        Ok(self.regions.lock().get(id)?.headline("") + "offers direct")
    }

    fn regions_covering(&self, addr: u64, len: u64) -> usize {
        self.regions.lock().covering(addr, len)
    }

    fn allocate(&self, len: usize) -> Result<usize> {
        self.memory.allocate(len)
    }

    fn free(&self, addr: usize) -> Result<()> {
        self.memory.free(addr, |addr, len| self.regions_covering(addr, len))
    }
}

/// Copies between local pieces and a peer's regions, which stay locked meanwhile.
fn copy(dir: Dir, local: &[Iov], regions: &Regions, remote: &[RmaIov]) -> Result<()> {
    let needed = if dir == Dir::Write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
    let mut checked = Vec::with_capacity(remote.len());
    for r in remote {
        let found = regions.find(r.key).ok_or(Code::Key).and_then(|of| Ok((of, of.range(r.addr, r.len as u64, needed)?, r.len)));
        checked.push(found.map_err(Error::reported)?);
    }
    let mut skip = 0;
    for (region, offset, len) in checked {
        for (piece, from, n) in region.walk(offset, len) {
            let (there, mut bytes) = ([piece.iov.part(from, n)], vec![0; n]);
            match dir {
                Dir::Write => load(Site::HOST, local, skip, &mut bytes).and_then(|()| store(Site::HOST, &there, 0, &bytes))?,
                Dir::Read => load(Site::HOST, &there, 0, &mut bytes).and_then(|()| store(Site::HOST, local, skip, &bytes))?,
            }
            skip += n;
        }
    }
    Ok(())
}

/// The listeners of this process by address, for as long as they exist.
static LISTENERS: Mutex<BTreeMap<String, Weak<Calls>>> = Mutex::new(BTreeMap::new());
type Calls = Mutex<Vec<Call>>;

/// A posted receive: its memory, its entry, and whether the entry is wanted.
type Posted = (Vec<Iov>, Completion, bool);

#[derive(Default)]
struct State {
    bind: Bindings,
    stage: Stage,
    object: usize,
    peer: Option<Arc<End>>,
    receives: VecDeque<Posted>,
    messages: VecDeque<Vec<u8>>,
    options: Options,
    stats: Stats,
}

impl State {
    fn peer(&self) -> Result<Arc<End>> {
        let found = self.peer.as_ref().filter(|_| self.stage == Stage::Connected);
        found.cloned().ok_or_else(|| Error::fixed(errno::ENOTCONN, "ep: not connected"))
    }

    /// Admits an operation of this side by reserving its entry.
    fn admit(&self, kind: u64, local: &[Iov], c: &Common) -> Result<(Arc<End>, Ending)> {
        let (peer, len, wanted) = (self.peer()?, measure(local, MAX_MSG)?, self.bind.wants_entry(c.flags));
        if !self.bind.reserve(wanted) {
            return Err(Error::AGAIN);
        }
        let end = Ending { context: c.context, kind, len, wanted, part: c.flags & PART != 0, ..Ending::default() };
        Ok((peer, self.bind.place(end)))
    }

    /// Ends an admitted operation.
    fn finish(&mut self, end: &Ending, result: Result<()>) {
        match result {
            Ok(()) if end.kind & flags::RMA == 0 => self.stats.sends += 1,
            Ok(()) => self.stats.moved(Paths::DIRECT, end.len),
            Err(_) => self.stats.errors += 1,
        }
        result.map_or_else(|why| self.bind.fail(end, why), |()| self.bind.succeed(end))
    }

    /// Puts arrived messages into receives, as long as the queue has room.
    fn deliver(&mut self) {
        while !self.messages.is_empty() && !self.receives.is_empty() && self.bind.rx.as_ref().is_none_or(|q| q.has_room()) {
            let (Some(bytes), Some((to, entry, wanted))) = (self.messages.pop_front(), self.receives.pop_front()) else { return };
            let len = bytes.len().min(total(&to).unwrap_or(usize::MAX));
            let olen = bytes.len() - len;
            let why = store(Site::HOST, &to, 0, &bytes[..len]).err().or((olen > 0).then(|| Error::reported(Code::Trunc)));
            self.stats.recvs += 1;
            self.bind.received(None, Completion { len, ..entry }, wanted, why.map(|error| Failure { error, olen, block: 0 }));
        }
    }

    /// Ends the connection; this side's receives fail.
    fn end(&mut self, code: Code, number: i32) {
        self.stage = Stage::Over;
        for (_, entry, _) in self.receives.drain(..) {
            self.bind.spoiled(None, entry, Error::coded(number, code, "the connection is over").into());
        }
    }
}

struct End {
    regions: Arc<Mutex<Regions>>,
    context: usize,
    state: Mutex<State>,
}

impl End {
    fn tell(&self, kind: EventKind, data: &[u8], error: Option<Error>) {
        let s = self.state.lock();
        s.bind.event(kind, s.object, self.context, data.to_vec(), error);
    }
}

/// A connection request. One that is dropped without being accepted is rejected.
struct Call {
    from: Option<Arc<End>>,
    data: Vec<u8>,
    answer: Vec<u8>,
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(end) = self.from.take() {
            end.state.lock().stage = Stage::Over;
            end.tell(EventKind::Connected, &self.answer, Some(Error::coded(errno::ECONNREFUSED, Code::Rejected, "the peer said no")));
        }
    }
}

impl Request for Call {
    fn from(&self) -> String {
        SCHEME.into()
    }

    fn data(&self) -> &[u8] {
        &self.data
    }

    fn reject(mut self: Box<Self>, data: &[u8]) -> Result<()> {
        self.answer = data.to_vec();
        Ok(())
    }
}

/// Listens at `address` once it is told to.
struct Waits {
    address: String,
    calls: Arc<Calls>,
}

impl Listener for Waits {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn listen(&mut self) -> Result<()> {
        let mut all = LISTENERS.lock();
        if all.get(&self.address).is_some_and(|calls| calls.strong_count() > 0) {
            return Err(Error::new(errno::EADDRINUSE, format!("{}: somebody listens there", self.address)));
        }
        all.insert(self.address.clone(), Arc::downgrade(&self.calls));
        Ok(())
    }

    fn poll(&mut self) -> (Vec<Box<dyn Request>>, Option<Error>) {
        let calls = std::mem::take(&mut *self.calls.lock());
        (calls.into_iter().map(|call| Box::new(call) as Box<dyn Request>).collect(), None)
    }
}

struct Ep(Arc<End>);

impl Endpoint for Ep {
    fn set_object(&self, object: usize) {
        self.0.state.lock().object = object;
    }

    fn bind(&self, what: Binding) -> Result<()> {
        self.0.state.lock().bind.bind(what)
    }

    fn enable(&self, op_flags: OpFlags) -> Result<()> {
        let mut s = self.0.state.lock();
        s.bind.check_can_enable()?;
        s.bind.enable(op_flags);
        s.stage = Stage::Enabled;
        Ok(())
    }

    fn connect(&self, address: &str, data: &[u8]) -> Result<()> {
        Loopback.check_address(address)?;
        let calls = LISTENERS.lock().get(address).and_then(Weak::upgrade);
        let calls = calls.ok_or_else(|| Error::new(errno::ECONNREFUSED, format!("{address}: nobody listens")))?;
        let mut s = self.0.state.lock();
        s.bind.check_can_connect(s.stage)?;
        s.stage = Stage::Connected;
        drop(s);
        calls.lock().push(Call { from: Some(self.0.clone()), data: data.to_vec(), answer: Vec::new() });
        Ok(())
    }

    fn accept(&self, request: Box<dyn Request>, data: &[u8]) -> Result<()> {
        let mut call: Call = own_request(request)?;
        let mut s = self.0.state.lock();
        s.bind.check_can_connect(s.stage)?;
        let Some(peer) = call.from.take() else { return Err(Error::fixed(errno::EOPBADSTATE, "info->handle: answered already")) };
        (s.stage, s.peer) = (Stage::Connected, Some(peer.clone()));
        drop(s);
        peer.state.lock().peer = Some(self.0.clone());
        peer.tell(EventKind::Connected, data, None);
        self.0.tell(EventKind::Connected, &[], None);
        Ok(())
    }

    fn address(&self) -> Result<String> {
        Ok(SCHEME.into())
    }

    fn peer_address(&self) -> Result<String> {
        self.0.state.lock().peer().map(|_| SCHEME.into())
    }

    fn shutdown(&self) -> Result<()> {
        let peer = self.0.state.lock().peer()?;
        (self.0.state.lock()).end(Code::Canceled, errno::ECANCELED);
        peer.state.lock().end(Code::PeerGone, errno::ECONNRESET);
        peer.tell(EventKind::Shutdown, &[], None);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        let _ = self.shutdown();
        let mut s = self.0.state.lock();
        s.end(Code::Canceled, errno::ECANCELED);
        (s.bind, s.peer) = (Bindings::default(), None);
        Ok(())
    }

    fn rma(&self, dir: Dir, local: &[Iov], remote: &[RmaIov], c: &Common, _descs: &[u64]) -> Result<()> {
        if remote.iter().map(|r| r.len).sum::<usize>() != measure(local, MAX_MSG)? {
            return Err(Error::invalid("rma_iov: not as long as the local pieces"));
        }
        let kind = flags::RMA | if dir == Dir::Write { flags::WRITE } else { flags::READ };
        let (peer, end) = self.0.state.lock().admit(kind, local, c)?;
        let result = copy(dir, local, &peer.regions.lock(), remote);
        if result.is_ok() && c.flags & flags::REMOTE_CQ_DATA != 0 {
            peer.state.lock().bind.remote_data(end.len, c.data);
        }
        self.0.state.lock().finish(&end, result);
        Ok(())
    }

    fn send(&self, local: &[Iov], c: &Common, _descs: &[u64]) -> Result<()> {
        let (peer, end) = self.0.state.lock().admit(flags::SEND | flags::MSG, local, c)?;
        let mut bytes = vec![0; end.len];
        let result = load(Site::HOST, local, 0, &mut bytes);
        if result.is_ok() {
            let mut theirs = peer.state.lock();
            theirs.messages.push_back(bytes);
            theirs.deliver();
        }
        self.0.state.lock().finish(&end, result);
        Ok(())
    }

    fn recv(&self, local: &[Iov], c: &Common, _descs: &[u64]) -> Result<()> {
        let mut s = self.0.state.lock();
        let entry = Completion { context: c.context, flags: flags::RECV | flags::MSG, ..Completion::default() };
        let wanted = s.bind.wants_receive(c.flags);
        s.receives.push_back((local.to_vec(), entry, wanted));
        s.deliver();
        Ok(())
    }

    /// Every post completes at once; only messages without room in the queue wait for progress.
    fn progress(&self, _force: bool) {
        self.0.state.lock().deliver();
    }

    fn options(&self) -> Options {
        self.0.state.lock().options
    }

    fn set_options(&self, change: &mut dyn FnMut(&mut Options)) {
        change(&mut self.0.state.lock().options);
    }

    fn report(&self, _peer: u64, _key: u64, _desc: u64) -> Result<PathReport> {
        let refusals = Refusals { direct: None, ..Refusals::refused("the peer is in this process") };
        let paths = refusals.possible();
        Ok(PathReport { path: paths.best(), paths, offered: paths, text: refusals.lines(paths.best()), refusals, short: None })
    }

    fn stats(&self) -> Stats {
        self.0.state.lock().stats
    }
}

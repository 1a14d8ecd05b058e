// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Discovery (`gdrfab_getinfo()`): compares the candidates of each provider with the caller's hints. A candidate that does
//! not fit keeps the reason.

use crate::config;
use crate::error::{Error, Result, errno};
use crate::hmem::Site;
use crate::mr::Paths;
use crate::prov::info::Ask;
use crate::prov::{self, Provider, flags};
use crate::rdm;

pub use crate::prov::info::{
    ADDR_STR, EP_MSG, EP_RDM, Info, Near, Nic, PROGRESS_AUTO, PROGRESS_MANUAL, Secret, THREAD_DOMAIN, THREAD_SAFE,
};

/// A field of bits, and the bits of it that this library knows.
struct Bits {
    name: &'static str,
    known: u64,
    names: &'static [(u64, &'static str)],
}

const CAPS: Bits = Bits { name: "caps", known: flags::CAPS, names: flags::NAMES };
const TX_OP_FLAGS: Bits = Bits {
    name: "tx_op_flags",
    known: flags::COMPLETION | flags::INJECT | flags::INJECT_COMPLETE | flags::TRANSMIT_COMPLETE | flags::DELIVERY_COMPLETE,
    names: flags::NAMES,
};
const RX_OP_FLAGS: Bits = Bits { name: "rx_op_flags", known: flags::COMPLETION | flags::MULTI_RECV, names: flags::NAMES };
const MSG_ORDER: Bits = Bits { name: "msg_order", known: flags::ORDER_ALL | flags::ORDER_ATOMICS, names: flags::ORDER_NAMES };
const COMP_ORDER: Bits = Bits { name: "comp_order", known: flags::ORDER_ALL, names: flags::ORDER_NAMES };
/// All mode bits of libfabric, also those without a meaning here: a caller sets every mode that it is ready for.
const MR_MODE: Bits = Bits { name: "mr_mode", known: 0x1ffc, names: flags::MR_MODE_NAMES };

impl Bits {
    /// Refuses unknown bits, and names the known ones.
    fn check(&self, of: &str, value: u64, errno: i32) -> Result<()> {
        let unknown = value & !self.known;
        if unknown == 0 {
            return Ok(());
        }
        let knows = flags::words(self.known, self.names);
        Err(Error::new(
            errno,
            format!("{of}->{}: {value:#x} holds {unknown:#x}, which this library does not know; it knows {knows}", self.name),
        ))
    }

    /// Refuses a candidate that lacks bits of the hints.
    fn fit(&self, want: u64, offer: u64) -> Result<()> {
        self.check("hints", want, errno::ENODATA)?;
        match want & !offer {
            0 => Ok(()),
            lacks => Err(Error::new(
                errno::ENODATA,
                format!("hints->{}: the provider lacks {} of {want:#x}", self.name, flags::words(lacks, self.names)),
            )),
        }
    }
}

/// The provider that made a candidate.
pub(super) fn provider(info: &Info) -> Result<&'static dyn Provider> {
    let name = info.prov_name.as_deref();
    match info.is_matched() {
        _ if info.ep_type == EP_RDM => rdm::get(name),
        true => rdm::connected(name),
        false => prov::get(name),
    }
}

/// Checks the fields of an info with which the caller opens an object.
pub(crate) fn check(info: &Info) -> Result<()> {
    let within = |what: &str, value: u32, known: &[u32]| {
        if known.contains(&value) {
            Ok(())
        } else {
            Err(Error::invalid(format!("info->{what}: {value}, this provider supports {known:?}")))
        }
    };
    within("ep_type", info.ep_type, &[0, EP_MSG, EP_RDM])?;
    within("threading", info.threading, &[0, THREAD_SAFE, THREAD_DOMAIN])?;
    within("progress", info.progress, &[0, PROGRESS_AUTO, PROGRESS_MANUAL])?;
    within("addr_format", info.addr_format, &[0, ADDR_STR])?;
    let op_flags = [(TX_OP_FLAGS, info.tx_op_flags), (RX_OP_FLAGS, info.rx_op_flags)];
    for (field, value) in [(MR_MODE, u64::from(info.mr_mode)), (COMP_ORDER, info.comp_order)].into_iter().chain(op_flags) {
        field.check("info", value, errno::EINVAL)?;
    }
    if info.rx_op_flags & !info.rx_op_flags_limit() != 0 {
        return Err(Error::fixed(errno::EINVAL, "info->rx_op_flags: GDRFAB_MULTI_RECV needs an endpoint opened with that capability"));
    }
    match &info.reason {
        Some(_) => Err(Error::invalid("info: this candidate cannot be used; info->reason says why")),
        None => Ok(()),
    }
}

/// Refuses a candidate whose limit is below the value in the hints.
fn at_least(name: &str, want: usize, offer: usize) -> Result<()> {
    if want > offer {
        return Err(Error::new(errno::ENODATA, format!("hints->{name} = {want}, the provider's limit is {offer}")));
    }
    Ok(())
}

/// Refuses a candidate that does not offer the value in the hints; 0 in the hints asks for nothing.
fn one_of(name: &str, want: u32, offers: &[u32]) -> Result<()> {
    if want != 0 && !offers.contains(&want) {
        return Err(Error::new(errno::ENODATA, format!("hints->{name} = {want}, the provider offers {offers:?}")));
    }
    Ok(())
}

/// Refuses a candidate with another name than the hints have.
fn name(what: &str, want: &Option<String>, offer: &Option<String>) -> Result<()> {
    match (want, offer) {
        (Some(w), Some(o)) if w != o => Err(Error::new(errno::ENODATA, format!("hints->{what} asks for {w:?}, this candidate has {o:?}"))),
        _ => Ok(()),
    }
}

/// Compares a candidate with the hints, and puts the hints' choices into it.
fn fit(info: &mut Info, hints: &Info) -> Result<()> {
    let most = |limit: usize, says: usize| if limit == 0 { says } else { limit };
    one_of("ep_type", hints.ep_type, &[info.ep_type])?;
    name("fabric_name", &hints.fabric_name, &info.fabric_name)?;
    name("domain_name", &hints.domain_name, &info.domain_name)?;
    CAPS.fit(hints.caps, info.caps)?;
    TX_OP_FLAGS.fit(hints.tx_op_flags, info.limits.tx_op_flags)?;
    RX_OP_FLAGS.fit(hints.rx_op_flags, info.rx_op_flags_limit())?;
    MSG_ORDER.fit(hints.msg_order, info.msg_order)?;
    // Long messages complete when their receivers have read them, which may be in any order.
    COMP_ORDER.fit(hints.comp_order, if info.is_matched() { 0 } else { flags::ORDER_ALL })?;
    MR_MODE.fit(u64::from(hints.mr_mode), MR_MODE.known)?;
    // Hints of 0 mean any mode.
    let can = if hints.mr_mode == 0 { info.mr_mode } else { hints.mr_mode };
    if info.limits.mr_mode & !can != 0 {
        let lacks = info.limits.mr_mode & !can;
        return Err(Error::new(
            errno::ENODATA,
            format!(
                "hints->mr_mode = {:#x} lacks {lacks:#x} ({}), which this provider needs",
                hints.mr_mode,
                flags::words(u64::from(lacks), flags::MR_MODE_NAMES)
            ),
        ));
    }
    one_of("threading", hints.threading, &[THREAD_SAFE, THREAD_DOMAIN])?;
    one_of("progress", hints.progress, &[PROGRESS_AUTO, PROGRESS_MANUAL])?;
    one_of("addr_format", hints.addr_format, &[ADDR_STR])?;
    at_least("cq_data_size", hints.cq_data_size, info.cq_data_size)?;
    at_least("inject_size", hints.inject_size, most(info.limits.inject_size, info.inject_size))?;
    at_least("tx_size", hints.tx_size, most(info.limits.tx_size, info.tx_size))?;
    at_least("rx_size", hints.rx_size, most(info.limits.rx_size, info.rx_size))?;
    at_least("tx_iov_limit", hints.tx_iov_limit, info.tx_iov_limit)?;
    at_least("rx_iov_limit", hints.rx_iov_limit, info.rx_iov_limit)?;
    at_least("rma_iov_limit", hints.rma_iov_limit, info.rma_iov_limit)?;
    at_least("mr_iov_limit", hints.mr_iov_limit, info.mr_iov_limit)?;
    at_least("max_msg_size", hints.max_msg_size, info.max_msg_size)?;
    at_least("mr_key_size", hints.mr_key_size, info.mr_key_size)?;
    at_least("mr_cnt", hints.mr_cnt, info.mr_cnt)?;
    at_least("cm_data_size", hints.cm_data_size, info.cm_data_size)?;
    if !hints.paths.is_empty() && !hints.paths.intersects(info.paths) {
        let unknown = match hints.paths.bits() & !Paths::all().bits() {
            0 => String::new(),
            bits => format!(" and for {bits:#x}, which this library does not know; it knows {}", Paths::all().words()),
        };
        return Err(Error::new(
            errno::ENODATA,
            format!("hints->paths asks for {}{unknown}; the provider has {}", hints.paths.words(), info.paths.words()),
        ));
    }
    let check = |addr: &str| provider(info)?.check_address(addr);
    for (addr, name) in [(&hints.src_addr, "hints->src_addr"), (&hints.dest_addr, "hints->dest_addr")] {
        addr.as_deref().map_or(Ok(()), check).map_err(|e| e.context(name))?;
    }
    info.src_addr = hints.src_addr.clone().or(info.src_addr.take());
    info.dest_addr = hints.dest_addr.clone().or(info.dest_addr.take());
    // A bit that the hints lack is a mode that the caller does not want: offsets then stand for addresses, or the
    // caller chooses the keys.
    info.mr_mode &= can;
    info.caps = if hints.caps == 0 { info.caps } else { hints.caps };
    if info.caps & (flags::MSG | flags::RECV) == 0 {
        // If the caller posts no receives, the provider posts its own for writes with data.
        info.mode &= !flags::RX_CQ_DATA;
    }
    (info.tx_op_flags, info.rx_op_flags) = (hints.tx_op_flags, hints.rx_op_flags);
    info.comp_order |= hints.comp_order;
    info.threading = if hints.threading == 0 { info.threading } else { hints.threading };
    info.progress = if hints.progress == 0 { info.progress } else { hints.progress };
    info.tx_size = info.tx_size.max(hints.tx_size);
    info.rx_size = info.rx_size.max(hints.rx_size);
    info.inject_size = info.inject_size.max(hints.inject_size);
    Ok(())
}

/// The PCI address of an accelerator, from its driver.
fn pci_of(near: Site) -> Result<String> {
    let found = super::hmem::device(near.iface, near.device).map_err(|e| e.context("near_iface, near_device"))?;
    Ok(found.pci.clone())
}

/// The NIC behind an info that discovery has returned.
pub fn nic(info: &Info) -> Result<Nic> {
    let near = info.near.map(pci_of).transpose()?;
    provider(info)?.nic(info, near.as_deref())
}

/// Refuses a candidate that the configuration or the hints rule out, with the reason.
fn consider(info: &mut Info, hints: Option<&Info>) -> Result<()> {
    if let Some(only) = &config::get().provider
        && Some(only) != info.prov_name.as_ref()
    {
        return Err(Error::new(errno::ENODATA, format!("GDRFAB_PROVIDER={only} leaves only that provider")));
    }
    if let Some(h) = hints {
        name("prov_name", &h.prov_name, &info.prov_name)?;
    }
    // A key must keep out peers of connectionless endpoints. Connected endpoints over cards may ignore a key, because
    // their program accepts or rejects each peer.
    let unenforced = info.ep_type == EP_RDM && info.auth_key.is_some() && !provider(info)?.enforces_auth_key();
    match (&info.reason, hints) {
        (Some(e), _) => Err(e.clone()),
        (None, _) if unenforced => Err(Error::fixed(
            errno::EOPNOTSUPP,
            "hints->auth_key: a provider of this set cannot authenticate a peer by a key; use tcp, or leave auth_key NULL",
        )),
        (None, Some(h)) => fit(info, h),
        (None, None) => Ok(()),
    }
}

/// A text with the reason why each candidate was left out. Neighbours with the same reason share it.
pub fn left_out(candidates: &[Info]) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    for info in candidates {
        let Some(why) = info.reason.as_ref() else { continue };
        // The whole text is the text of an ENODATA error, so the name ENODATA is left out here.
        let why = if why.errno == errno::ENODATA { why.words.to_string() } else { why.to_string() };
        let domain = info.domain_name.as_ref().filter(|d| Some(*d) != info.prov_name.as_ref()).map_or(String::new(), |d| format!(" ({d})"));
        let name = format!("{}{domain}", info.prov_name.as_deref().unwrap_or("?"));
        match lines.last_mut() {
            Some((names, same)) if *same == why => *names = format!("{names}, {name}"),
            _ => lines.push((name, why)),
        }
    }
    lines.iter().map(|(names, why)| format!("{names}: {why}")).collect::<Vec<_>>().join("; ")
}

/// The candidates that fit, best first. If there are none, `ENODATA` names the reason for each. With `GETINFO_ALL` candidates
/// that do not fit are returned too.
pub fn getinfo(node: Option<&str>, service: Option<&str>, asked: u64, hints: Option<&Info>) -> Result<Vec<Info>> {
    let unknown = asked & !(flags::SOURCE | flags::GETINFO_ALL);
    if unknown != 0 {
        let words = format!("flags: {asked:#x} holds {unknown:#x}; only GDRFAB_SOURCE and GDRFAB_GETINFO_ALL are known here");
        return Err(Error::new(errno::EBADFLAGS, words));
    }
    config::check()?;
    let hinted = hints.and_then(|h| h.prov_name.as_deref());
    let configured = config::get().provider.as_deref();
    let wanted = |name: &str| hinted.is_none_or(|h| h == name) && configured.is_none_or(|c| c == name);
    let near = hints.and_then(|h| h.near).map(pci_of).transpose()?;
    let domain = hints.and_then(|h| h.domain_name.as_deref());
    let ask = Ask { node, service, source: asked & flags::SOURCE != 0, domain, near: near.as_deref() };
    // A caller that does not ask for connectionless endpoints gets connected ones.
    let asks_for = |ep_type: u32| hints.is_none_or(|h| h.ep_type == 0 || h.ep_type == ep_type);
    let connectionless = hints.is_some_and(|h| h.ep_type == EP_RDM || h.caps & flags::CONNECTIONLESS != 0) && asks_for(EP_RDM);
    let mut all = if connectionless { rdm::candidates(&ask, wanted) } else { Vec::new() };
    if !connectionless || asks_for(EP_MSG) {
        let tagged = hints.is_some_and(|h| h.caps & flags::MATCHED != 0);
        all.extend(if tagged { rdm::connected_candidates(&ask, wanted) } else { prov::candidates(&ask, wanted) });
    }
    if all.is_empty() {
        let asked = hinted.or(configured).unwrap_or_default();
        return Err(match configured.filter(|_| hinted.is_some_and(|h| rdm::get(Some(h)).is_ok())) {
            Some(only) => {
                Error::new(errno::ENODATA, format!("hints->prov_name: {asked:?}, but GDRFAB_PROVIDER={only} leaves only that provider"))
            }
            None => Error::new(
                errno::ENODATA,
                format!("hints->prov_name: no connectionless endpoints over {asked:?}, but over {}", config::SETS.join(", ")),
            ),
        });
    }
    for info in &mut all {
        info.near = hints.and_then(|h| h.near);
        info.auth_key = hints.and_then(|h| h.auth_key.clone());
        if let Err(e) = consider(info, hints) {
            info.reason = Some(e);
        }
    }
    if asked & flags::GETINFO_ALL != 0 {
        return Ok(all);
    }
    if all.iter().all(|i| i.reason.is_some()) {
        // A value that no provider could parse is the caller's mistake (EINVAL), and not a lack of the host (ENODATA).
        if let Some(wrong) = all.iter().filter_map(|i| i.reason.as_ref()).find(|e| e.errno == errno::EINVAL) {
            return Err(wrong.clone());
        }
        return Err(Error::new(errno::ENODATA, format!("no provider fits: {}", left_out(&all))));
    }
    all.retain(|i| i.reason.is_none());
    Ok(all)
}

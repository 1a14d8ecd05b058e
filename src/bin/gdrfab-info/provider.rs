// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A provider for a reader: its attributes with their names, and what it found out about the host.

use crate::nics::{self, Port};
use gdrfab::error::Result;
use gdrfab::fabric::{self, ADDR_STR, EP_MSG, EP_RDM, Info, PROGRESS_AUTO, PROGRESS_MANUAL, THREAD_DOMAIN, THREAD_SAFE};
use gdrfab::hmem::Site;
use gdrfab::prov::{self, Offer, flags};
use serde_json::{Value, json};
use std::fmt::Write;

pub struct Provider {
    offer: Offer,
    /// The first that can be used, or if none can, the first.
    info: Info,
    ports: Vec<Port>,
}

/// What a caller can do that can do everything.
const EVERY_MR_MODE: u32 = 0x1ffc;

/// The providers of this build, or the one of that name; `near`: an accelerator whose nearest NICs come first.
pub fn all(only: Option<&str>, near: Option<Site>) -> Result<Vec<Provider>> {
    let hints = Info { prov_name: only.map(str::to_string), near, mr_mode: EVERY_MR_MODE, ..Info::default() };
    let hints = (only.is_some() || near.is_some()).then_some(&hints);
    let infos = fabric::getinfo(None, None, flags::GETINFO_ALL, hints)?;
    let mut found = Vec::new();
    for offer in prov::offers() {
        if only.is_some_and(|name| name != offer.name) {
            continue;
        }
        let of_it: Vec<Info> = infos.iter().filter(|i| i.prov_name.as_deref() == Some(offer.name)).cloned().collect();
        let first = of_it.iter().find(|i| i.reason.is_none()).or(of_it.first()).cloned();
        if let Some(info) = first {
            let ports = if offer.name == "verbs" { nics::of(&of_it) } else { Vec::new() };
            found.push(Provider { offer, info, ports });
        }
    }
    Ok(found)
}

const CAPS: [(u64, &str); 12] = [
    (flags::MSG, "MSG"),
    (flags::RMA, "RMA"),
    (flags::SEND, "SEND"),
    (flags::RECV, "RECV"),
    (flags::READ, "READ"),
    (flags::WRITE, "WRITE"),
    (flags::REMOTE_READ, "REMOTE_READ"),
    (flags::REMOTE_WRITE, "REMOTE_WRITE"),
    (flags::RMA_EVENT, "RMA_EVENT"),
    (flags::HMEM, "HMEM"),
    (flags::LOCAL_COMM, "LOCAL_COMM"),
    (flags::REMOTE_COMM, "REMOTE_COMM"),
];

const MR_MODES: [(u64, &str); 3] =
    [(flags::MR_MODE_LOCAL as u64, "LOCAL"), (flags::MR_MODE_VIRT_ADDR as u64, "VIRT_ADDR"), (flags::MR_MODE_PROV_KEY as u64, "PROV_KEY")];

/// Names of bits; a bit without a name shows as a number.
fn names(bits: u64, of: &[(u64, &str)]) -> Vec<String> {
    let mut list: Vec<String> = of.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| name.to_string()).collect();
    let rest = of.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        list.push(format!("{rest:#x}"));
    }
    list
}

fn named(value: u32, of: &[(u32, &str)]) -> String {
    of.iter().find(|(n, _)| *n == value).map_or(value.to_string(), |(_, name)| name.to_string())
}

fn order(bits: u64) -> String {
    if bits & flags::ORDER_ALL == flags::ORDER_ALL {
        return "everything after everything".to_string();
    }
    let names = ["RAR", "RAW", "RAS", "WAR", "WAW", "WAS", "SAR", "SAW", "SAS"];
    let held: Vec<&str> = names.into_iter().enumerate().filter(|(i, _)| bits & 1 << i != 0).map(|(_, name)| name).collect();
    format!("{} (R read, W write, S send; A after)", held.join(" "))
}

/// A count of bytes or things as people write it.
fn human(n: usize) -> String {
    let units = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    match units.iter().find(|(shift, _)| n >= 1 << shift && n.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{} {unit}", n >> shift),
        None => n.to_string(),
    }
}

impl Provider {
    pub fn is_usable(&self) -> bool {
        self.info.reason.is_none()
    }

    fn words(&self) -> Vec<(&'static str, String)> {
        let i = &self.info;
        let addresses = match self.offer.name {
            "shm" => "text: shm://name",
            "tcp" => "text: tcp://host:port",
            _ => "text: verbs://host:port, or that of a queue pair",
        };
        vec![
            ("fabric", i.fabric_name.clone().unwrap_or_default()),
            ("domain", i.domain_name.clone().unwrap_or_default()),
            ("endpoints", named(i.ep_type, &[(EP_MSG, "MSG: connected, reliable"), (EP_RDM, "RDM: connectionless, reliable")])),
            ("capabilities", names(i.caps, &CAPS).join(" ")),
            ("addresses", named(i.addr_format, &[(ADDR_STR, addresses)])),
            ("threading", named(i.threading, &[(THREAD_SAFE, "SAFE; DOMAIN may be asked for"), (THREAD_DOMAIN, "DOMAIN")])),
            ("progress", named(i.progress, &[(PROGRESS_MANUAL, "MANUAL; AUTO may be asked for"), (PROGRESS_AUTO, "AUTO")])),
            ("mr_mode", names(u64::from(i.mr_mode), &MR_MODES).join(" ")),
            ("message order", order(i.msg_order)),
        ]
    }

    fn limits(&self) -> Vec<(&'static str, usize)> {
        let i = &self.info;
        vec![
            ("max_msg_size", i.max_msg_size),
            ("inject_size", i.inject_size),
            ("tx_size", i.tx_size),
            ("rx_size", i.rx_size),
            ("tx_iov_limit", i.tx_iov_limit),
            ("rx_iov_limit", i.rx_iov_limit),
            ("rma_iov_limit", i.rma_iov_limit),
            ("mr_iov_limit", i.mr_iov_limit),
            ("mr_key_size", i.mr_key_size),
            ("mr_cnt", i.mr_cnt),
            ("cq_data_size", i.cq_data_size),
            ("cm_data_size", i.cm_data_size),
        ]
    }

    pub fn text(&self, verbose: bool) -> String {
        let mut out = format!("provider {}\n", self.offer.name);
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(out, "  {name:<16} {value}");
        };
        match &self.info.reason {
            None => line("usable", "yes"),
            Some(why) => line("usable", &format!("no: {why}")),
        }
        line("paths allowed", &self.info.paths.words());
        for (name, fact) in &self.offer.facts {
            match fact {
                Ok(words) => line(name, words),
                Err(words) => line(name, &format!("no: {words}")),
            }
        }
        self.ports.iter().for_each(|port| port.text(&mut out, verbose));
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(out, "  {name:<16} {value}");
        };
        if !self.is_usable() {
            return out;
        }
        let brief = ["endpoints", "capabilities"];
        self.words().iter().filter(|(name, _)| verbose || brief.contains(name)).for_each(|(name, value)| line(name, value));
        if verbose {
            self.limits().iter().for_each(|(name, n)| line(name, &human(*n)));
        }
        out
    }

    pub fn json(&self) -> Value {
        let i = &self.info;
        let facts = self.offer.facts.iter().map(|(name, fact)| {
            let words = match fact {
                Ok(words) | Err(words) => words,
            };
            json!({"name": name, "ok": fact.is_ok(), "words": words})
        });
        let threading = |t| named(t, &[(THREAD_SAFE, "safe"), (THREAD_DOMAIN, "domain")]);
        let progress = |p| named(p, &[(PROGRESS_MANUAL, "manual"), (PROGRESS_AUTO, "auto")]);
        let mut attributes = json!({
            "fabric": i.fabric_name,
            "domain": i.domain_name,
            "ep_type": named(i.ep_type, &[(EP_MSG, "msg"), (EP_RDM, "rdm")]),
            "caps": names(i.caps, &CAPS),
            "addr_format": named(i.addr_format, &[(ADDR_STR, "str")]),
            "threading": threading(i.threading),
            "progress": progress(i.progress),
            "mr_mode": names(u64::from(i.mr_mode), &MR_MODES),
            "msg_order": format!("{:#x}", i.msg_order),
        });
        self.limits().into_iter().for_each(|(name, n)| attributes[name] = n.into());
        let mut all = json!({
            "name": self.offer.name,
            "usable": self.is_usable(),
            "reason": i.reason.as_ref().map(|e| e.to_string()),
            "paths": i.paths.words().split(',').collect::<Value>(),
            "facts": facts.collect::<Value>(),
            "attributes": attributes,
        });
        if !self.ports.is_empty() {
            all["nics"] = self.ports.iter().map(Port::json).collect();
        }
        all
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Prints a provider: its attributes with their names, and the facts that it found out about the host.

use crate::nics::{self, Port};
use gdrfab::config;
use gdrfab::error::Result;
use gdrfab::fabric::{self, ADDR_STR, EP_MSG, EP_RDM, Info, PROGRESS_AUTO, PROGRESS_MANUAL, THREAD_DOMAIN, THREAD_SAFE};
use gdrfab::hmem::Site;
use gdrfab::prov::{self, flags};
use serde_json::{Value, json};
use std::fmt::Write;

/// A provider of connected endpoints, or a set of providers that connectionless endpoints go over.
pub struct Provider {
    name: &'static str,
    is_set: bool,
    facts: Vec<Fact>,
    /// The first candidate that can be used; if none can, the first.
    info: Info,
    ports: Vec<Port>,
}

/// The facts of the host, as in `prov::Offer`.
type Fact = (String, std::result::Result<String, String>);

/// The hints of a caller that can do everything.
const EVERY_MR_MODE: u32 = 0x1ffc;

/// The names that `--provider` takes: the providers of this build, and sets of several.
pub fn names() -> Vec<&'static str> {
    let mut names = prov::names();
    names.extend(config::SETS.into_iter().filter(|set| set.contains('+')));
    names
}

/// The providers of this build and the sets, or only those of this name. `near` is an accelerator whose nearest NICs come
/// first.
pub fn all(only: Option<&str>, near: Option<Site>) -> Result<Vec<Provider>> {
    let mut found = Vec::new();
    if only.is_none_or(|name| prov::names().contains(&name)) {
        let infos = infos(only, near, EP_MSG)?;
        for offer in prov::offers().into_iter().filter(|offer| only.is_none_or(|name| name == offer.name)) {
            found.extend(Provider::of(offer.name, false, offer.facts, &infos));
        }
    }
    if only.is_none_or(|name| config::SETS.contains(&name)) {
        let infos = infos(only, near, EP_RDM)?;
        let sets = config::SETS.into_iter().filter(|set| only.is_none_or(|name| name == *set));
        found.extend(sets.filter_map(|set| Provider::of(set, true, Vec::new(), &infos)));
    }
    Ok(found)
}

/// Every candidate of that kind of endpoint; refused ones carry their reasons.
fn infos(only: Option<&str>, near: Option<Site>, ep_type: u32) -> Result<Vec<Info>> {
    let hints = Info { prov_name: only.map(str::to_string), near, ep_type, mr_mode: EVERY_MR_MODE, ..Info::default() };
    fabric::getinfo(None, None, flags::GETINFO_ALL, Some(&hints))
}

/// The names of bits; a bit without a name is shown as a number.
fn names_of(bits: u64, of: &[(u64, &str)], prefix: &str) -> Vec<String> {
    let words = flags::words(bits, of);
    words.split(" | ").filter(|word| !word.is_empty()).map(|word| word.strip_prefix(prefix).unwrap_or(word).to_string()).collect()
}

fn named(value: u32, of: &[(u32, &str)]) -> String {
    of.iter().find(|(n, _)| *n == value).map_or(value.to_string(), |(_, name)| name.to_string())
}

fn order(bits: u64) -> String {
    if bits & flags::ORDER_ALL == flags::ORDER_ALL {
        let rest = names_of(bits & !flags::ORDER_ALL, flags::ORDER_NAMES, "ORDER_");
        return ["everything after everything".to_string()].into_iter().chain(rest).collect::<Vec<_>>().join(", ");
    }
    match names_of(bits, flags::ORDER_NAMES, "ORDER_") {
        held if held.is_empty() => "none".to_string(),
        held => format!("{} (R read, W write, S send; A after)", held.join(" ")),
    }
}

/// A number of bytes or things as people write it.
fn human(n: usize) -> String {
    let units = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
    match units.iter().find(|(shift, _)| n >= 1 << shift && n.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{} {unit}", n >> shift),
        None => n.to_string(),
    }
}

impl Provider {
    /// The provider of that name, if the library has any candidate of it.
    fn of(name: &'static str, is_set: bool, facts: Vec<Fact>, infos: &[Info]) -> Option<Provider> {
        let of_it: Vec<Info> = infos.iter().filter(|i| i.prov_name.as_deref() == Some(name)).cloned().collect();
        let info = of_it.iter().find(|i| i.reason.is_none()).or(of_it.first()).cloned()?;
        let ports = if name == "verbs" && !is_set { nics::of(&of_it) } else { Vec::new() };
        Some(Provider { name, is_set, facts, info, ports })
    }

    pub fn is_set(&self) -> bool {
        self.is_set
    }

    /// Describes a set of providers in one line.
    pub fn line(&self) -> String {
        let verdict = match &self.info.reason {
            None => format!("yes: paths {}", self.info.paths.words()),
            Some(why) => format!("no: {why}"),
        };
        format!("  {:<16} {verdict}\n", self.name)
    }

    pub fn is_usable(&self) -> bool {
        self.info.reason.is_none()
    }

    fn words(&self) -> Vec<(&'static str, String)> {
        let i = &self.info;
        let addresses = match self.name {
            _ if self.is_set => "text: rdm://host:port",
            "shm" => "text: shm://name",
            "tcp" => "text: tcp://host:port",
            _ => "text: verbs://host:port, or that of a queue pair",
        };
        vec![
            ("fabric", i.fabric_name.clone().unwrap_or_default()),
            ("domain", i.domain_name.clone().unwrap_or_default()),
            ("endpoints", named(i.ep_type, &[(EP_MSG, "MSG: connected, reliable"), (EP_RDM, "RDM: connectionless, reliable")])),
            ("capabilities", names_of(i.caps, flags::NAMES, "").join(" ")),
            ("addresses", named(i.addr_format, &[(ADDR_STR, addresses)])),
            ("threading", named(i.threading, &[(THREAD_SAFE, "SAFE; DOMAIN may be asked for"), (THREAD_DOMAIN, "DOMAIN")])),
            ("progress", named(i.progress, &[(PROGRESS_MANUAL, "MANUAL; AUTO may be asked for"), (PROGRESS_AUTO, "AUTO")])),
            ("mr_mode", names_of(u64::from(i.mr_mode), flags::MR_MODE_NAMES, "MR_").join(" ")),
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
        let kind = if self.is_set { "connectionless endpoints over" } else { "provider" };
        let mut out = format!("{kind} {}\n", self.name);
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(out, "  {name:<16} {value}");
        };
        match &self.info.reason {
            None => line("usable", "yes"),
            Some(why) => line("usable", &format!("no: {why}")),
        }
        line("paths allowed", &self.info.paths.words());
        for (name, fact) in &self.facts {
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
        let facts = self.facts.iter().map(|(name, fact)| {
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
            "caps": names_of(i.caps, flags::NAMES, ""),
            "addr_format": named(i.addr_format, &[(ADDR_STR, "str")]),
            "threading": threading(i.threading),
            "progress": progress(i.progress),
            "mr_mode": names_of(u64::from(i.mr_mode), flags::MR_MODE_NAMES, "MR_"),
            "msg_order": names_of(i.msg_order, flags::ORDER_NAMES, "ORDER_"),
        });
        self.limits().into_iter().for_each(|(name, n)| attributes[name] = n.into());
        let mut all = json!({
            "name": self.name,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_without_a_name_is_a_number() {
        assert_eq!(names_of(flags::ATOMIC | 1 << 62, flags::NAMES, ""), ["ATOMIC", "0x4000000000000000"]);
        assert_eq!(names_of(0, flags::NAMES, ""), Vec::<String>::new());
        assert_eq!(order(1 << 7 | 1 << 40), "SAW 0x10000000000 (R read, W write, S send; A after)");
        assert_eq!(order(flags::ORDER_ALL | 1 << 36), "everything after everything, ATOMIC_RAR");
        assert_eq!(order(0), "none");
    }
}

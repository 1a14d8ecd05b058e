// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The output of gdrfab-info, as text and as JSON, on any host, and its error when the output cannot be written.

use gdrfab::{config, prov};
use serde_json::Value;
use std::fs::File;
use std::process::{Command, Output, Stdio};

fn info(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gdrfab-info"));
    command.args(words);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GDRFAB_")) {
        command.env_remove(name);
    }
    command
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn text(words: &[&str]) -> String {
    told(&info(words).output().unwrap())
}

fn json(words: &[&str]) -> Value {
    serde_json::from_slice(&info(words).output().unwrap().stdout).unwrap()
}

#[test]
fn bits_are_told_by_their_names() {
    let all = text(&["-v"]);
    let lines = |name: &str| all.lines().filter(|line| line.trim_start().starts_with(name)).map(String::from).collect::<Vec<_>>();
    for line in lines("capabilities").iter().chain(&lines("message order")) {
        assert!(!line.contains("0x"), "{line}");
    }
    assert!(lines("capabilities").iter().any(|line| line.split_whitespace().any(|word| word == "ATOMIC")), "{all}");
    assert!(lines("message order").iter().any(|line| line.contains("ATOMIC_WAW")), "{all}");
    let all = json(&["--json"]);
    for kind in ["providers", "connectionless"] {
        for one in all[kind].as_array().unwrap() {
            for key in ["caps", "msg_order", "mr_mode"] {
                let bits = one["attributes"][key].as_array().unwrap();
                assert!(bits.iter().all(|bit| bit.as_str().is_some_and(|bit| !bit.starts_with("0x"))), "{kind} {key}: {bits:?}");
            }
        }
    }
    let shm = &all["providers"][0]["attributes"];
    let has = |key: &str, word: &str| shm[key].as_array().unwrap().iter().any(|bit| bit == word);
    assert!(has("caps", "ATOMIC") && has("msg_order", "SAW") && has("mr_mode", "VIRT_ADDR"), "{shm}");
}

#[test]
fn every_provider_and_every_set_is_there() {
    let (all, brief) = (json(&["--json"]), text(&[]));
    let names = |kind: &str| all[kind].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_string()).collect::<Vec<_>>();
    assert_eq!(names("providers"), prov::names());
    assert_eq!(names("connectionless"), config::SETS);
    for set in config::SETS {
        assert!(brief.lines().any(|line| line.split_whitespace().next() == Some(set)), "{set} is missing in\n{brief}");
        let (text, json) = (text(&["-p", set]), json(&["--json", "--provider", set]));
        assert!(text.contains(&format!("connectionless endpoints over {set}\n")), "{text}");
        assert_eq!((&json["connectionless"][0]["name"], &json["connectionless"][1]), (&Value::from(set), &Value::Null));
        // A single provider has connected endpoints as well.
        assert_eq!(json["providers"].as_array().unwrap().len(), usize::from(!set.contains('+')), "{set}");
    }
    let unknown = info(&["-p", "tcp+shm"]).output().unwrap();
    let words = String::from_utf8_lossy(&unknown.stderr);
    assert!(unknown.status.code() == Some(2) && words.contains("shm+tcp") && words.contains("verbs"), "{words}");
}

#[test]
fn what_cannot_be_written_is_told() {
    let key = std::env::temp_dir().join(format!("gdrfab-info-key-{}", std::process::id()));
    let key = key.to_str().unwrap();
    for words in [&[][..], &["-v"], &["--json"], &["-e"], &["-V"], &["-h"], &["-p", "shm+tcp"], &["--make-key", key]] {
        let full = info(words).stdout(File::create("/dev/full").unwrap()).stderr(Stdio::piped()).output().unwrap();
        let complaint = String::from_utf8_lossy(&full.stderr);
        assert!(full.status.code() == Some(1) && complaint.contains("standard output: No space left"), "{words:?}: {complaint}");
    }
    let _ = std::fs::remove_file(key);
    // A reader that stops reading wants no error text about it.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let gone = info(&["-v"]).stdout(writer).output().unwrap();
    assert_eq!((gone.status.code(), String::from_utf8_lossy(&gone.stderr).as_ref()), (Some(1), ""));
}

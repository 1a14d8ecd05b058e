// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results as CSV: a header, and a line for each size. Each line is complete by itself, so it repeats the description of the
//! measurement.

use serde_json::{Map, Value};

fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

/// A run as columns: the keys of `run` that the rows do not have, then the rows' own keys.
pub fn text(run: &Value, rows: &[Map<String, Value>]) -> String {
    let mut run = run.as_object().cloned().unwrap_or_default();
    run.retain(|key, _| !rows.iter().any(|row| row.contains_key(key)));
    let keys: Map<String, Value> = run.iter().chain(rows.iter().flatten()).map(|(key, _)| (key.clone(), Value::Null)).collect();
    let mut out = ::csv::Writer::from_writer(Vec::new());
    // A vector takes everything.
    let _ = out.write_record(keys.keys());
    for row in rows {
        let _ = out.write_record(keys.keys().map(|key| row.get(key).or(run.get(key)).map_or(String::new(), cell)));
    }
    String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_stand_for_themselves_and_odd_text_is_quoted() {
        let run = json!({"test": "a \"b\", c", "path": "of the run", "cpus": [0, 1], "depth": null});
        let rows = [json!({"bytes": 8, "x": 0.5, "path": "direct"}), json!({"bytes": 16, "path": "line\nbreak", "y": true})];
        let rows = rows.map(|row| row.as_object().unwrap().clone());
        let expected = "test,cpus,depth,bytes,x,path,y\n\
            \"a \"\"b\"\", c\",0 1,,8,0.5,direct,\n\
            \"a \"\"b\"\", c\",0 1,,16,,\"line\nbreak\",true\n";
        assert_eq!(text(&run, &rows), expected);
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results as CSV: a header, and a line for each size. Each line is complete by itself, so it repeats the description of the
//! measurement. The format needs only quoting, so no dependency is used for it.

use serde_json::{Map, Value};

/// A cell, in quotes if it contains characters of the format.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    if text.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}

/// A run as columns: the keys of `run` that the rows do not have, then the rows' own keys.
pub fn text(run: &Value, rows: &[Value]) -> String {
    let empty = Map::new();
    let run = run.as_object().unwrap_or(&empty);
    let rows: Vec<&Map<String, Value>> = rows.iter().filter_map(Value::as_object).collect();
    let mut keys: Vec<&String> = run.keys().filter(|key| !rows.iter().any(|row| row.contains_key(*key))).collect();
    for key in rows.iter().flat_map(|row| row.keys()) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let mut out = keys.iter().map(|key| cell(&Value::String(key.to_string()))).collect::<Vec<_>>().join(",") + "\n";
    for row in rows {
        let cells = keys.iter().map(|key| cell(row.get(*key).or(run.get(*key)).unwrap_or(&Value::Null)));
        out.push_str(&(cells.collect::<Vec<_>>().join(",") + "\n"));
    }
    out
}

#[cfg(test)]
mod unit {
    use super::*;
    use serde_json::json;

    #[test]
    fn rows_stand_for_themselves_and_odd_text_is_quoted() {
        let run = json!({"test": "a \"b\", c", "path": "of the run", "cpus": [0, 1], "depth": null});
        let rows = [json!({"bytes": 8, "x": 0.5, "path": "direct"}), json!({"bytes": 16, "path": "line\nbreak", "y": true})];
        let expected = "test,cpus,depth,bytes,x,path,y\n\
            \"a \"\"b\"\", c\",0 1,,8,0.5,direct,\n\
            \"a \"\"b\"\", c\",0 1,,16,,\"line\nbreak\",true\n";
        assert_eq!(text(&run, &rows), expected);
        assert_eq!(text(&Value::Null, &[]), "\n");
    }
}

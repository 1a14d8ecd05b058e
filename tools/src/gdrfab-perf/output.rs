// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options about results: their form, and the files where they are kept.

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    Json,
    Csv,
}

#[derive(Clone, Debug, Default)]
pub struct Output {
    /// The form of standard output.
    pub format: Format,
    /// Files, and the form of each.
    pub file: Option<(String, Format)>,
    /// Columns of CPU use.
    pub cpu: bool,
}

pub const HELP: &str = "
Results
      --json            as JSON instead of text
      --csv             as CSV: a header, and a line for each size
      --out FILE        as JSON or CSV, by its ending .json or .csv, into FILE as well
      --cpu-util        columns of the CPU time of client and server, in percent of one CPU
  gdrfab-perf plot      draws files of results; gdrfab-perf plot --help tells how
  gdrfab-perf compare   compares two of them, and fails beyond a limit; see its --help
";

impl Output {
    pub fn choose(&mut self, format: Format) -> Result<(), String> {
        if self.format != Format::Text && self.format != format {
            return Err("--json and --csv exclude each other".into());
        }
        self.format = format;
        Ok(())
    }

    pub fn keep(&mut self, path: String) -> Result<(), String> {
        let ending = std::path::Path::new(&path).extension().and_then(|e| e.to_str());
        let format = match ending {
            Some("json") => Format::Json,
            Some("csv") => Format::Csv,
            _ => return Err(format!("--out {path}: a name that ends in .json or .csv is expected")),
        };
        self.file = Some((path, format));
        Ok(())
    }

    pub fn is_text(&self) -> bool {
        self.format == Format::Text
    }
}

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# The output of results: JSON, CSV, files, drawings, comparison. See tests/check-perf.sh.
#
# Results are made once; the claims about them do not depend on any speed. Files that another program wrote or cut must be refused with an
# error that names the file and the key, so every such claim looks for both. Python checks the formats, if there is one.
set -u
here=$(cd "$(dirname "$0")" && pwd)
. "$here/claims.sh"
cd "$work" || exit 1

has_text() { # <file> <text>
	grep -qF -e "$2" "$1" || { cat "$1" && return 1; }
}
lacks() { # <file> <text>
	! has_text "$1" "$2"
}

# The command must fail with status <n>, and its error message must contain every <text> up to "--".
fails() { # <n> <text...> -- <command...>
	local wanted=$1 texts=() status text
	shift
	while [ "$1" != -- ]; do
		texts+=("$1")
		shift
	done
	shift
	timeout 20 "$@" >out 2>err
	status=$?
	cat err
	[ $status -eq "$wanted" ] || { echo "status $status" && return 1; }
	for text in "${texts[@]}"; do
		has_text err "$text" || return 1
	done
}

# ---- results of runs: one claim for each, and the files for the claims after them

into() { # <file> <command...>
	local file=$1
	shift
	"$@" >"$file"
}
provider=${PROVIDERS%% *}
claim "$provider: --out lat.json" into lat.txt local_run "$provider" write-lat -s 8:64 -n 50 --out lat.json
claim "$provider: --json" into lat2.json local_run "$provider" write-lat -s 8:64 -n 50 --json
claim "$provider: --out bw.csv, --json" into bw.json local_run "$provider" write-bw -s 4K:64K -n 200 --verify --json --out bw.csv
claim "$provider: --csv" into send.csv local_run "$provider" send-bw -s 64:128 -n 200 --csv
claim "$provider: --cpu-util" into cpu.txt local_run "$provider" read-bw -s 4K -n 200 --cpu-util
claim "mr-reg: --csv, --out" into mr.csv "$PERF" mr-reg -s 4K:16K -n 50 --csv --out mr.json
claim "beside --out there is the text" grep -q '^ test .*write-lat' lat.txt
claim "--cpu-util has columns for both sides" grep -q 'CPU client\[%\] *CPU server\[%\]' cpu.txt
claim "the header tells what registering took" grep -qE '^ registered +[0-9.]+ KiB in [0-9.]+ us here, [0-9.]+ us there' lat.txt
claim "no columns of CPU use unless asked for" lacks lat.txt 'CPU client[%]'
claim "a path with commas is quoted in CSV" grep -q '"offers [^"]*,[^"]*"' mr.csv
claim "CSV on standard output has nothing else" \
	bash -c 'head -n 1 send.csv | grep -q "^test,provider," && [ "$(wc -l <send.csv)" -eq 3 ]'

if command -v python3 >/dev/null; then
	cat >formats.py <<'END'
import csv, json, sys
lat, bw = json.load(open('lat.json')), json.load(open('bw.json'))
for file in lat, json.load(open('lat2.json')), bw, json.load(open('mr.json')):
    assert file['run']['complete'] is True and file['run']['error'] is None, file['run']
    assert list(file) == ['program', 'version', 'run', 'results'] and file['program'] == 'gdrfab-perf', list(file)
    for row in file['results']:
        assert 'cpu_client_percent' in row and 'cpu_server_percent' in row, row
assert [row['bytes'] for row in lat['results']] == [8, 16, 32, 64]
assert lat['run']['provider'] == sys.argv[1] and lat['run']['test'] == 'write-lat', lat['run']
for key in 'registration_bytes', 'registration_usec', 'remote_registration_usec':
    assert lat['run'][key] > 0, key
rows = list(csv.DictReader(open('bw.csv'), strict=True))
assert len(rows) == len(bw['results']) == 5
for cells, row in zip(rows, bw['results']):
    assert None not in cells and None not in cells.values(), cells
    for key, value in {**bw['run'], **row}.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        text = {'None': '', 'True': 'true', 'False': 'false'}.get(str(value), str(value))
        text = ' '.join(map(str, value)) if isinstance(value, list) else text
        assert float(cells[key]) == value if number else cells[key] == text, (key, value, cells[key])
assert all(row['verified'] == 'true' for row in rows)
END
	claim "JSON and CSV are that, and say the same" python3 formats.py "$provider"
else
	skip "JSON and CSV are that, and say the same" "there is no python3"
fi

doc=$here/../../docs/perf.md
all_keys_explained() {
	local key
	for key in $(sed -n 's/^ *"\([a-z0-9_]*\)": .*/\1/p' lat.json bw.json mr.json | sort -u); do
		grep -q "\`$key\`" "$doc" || { echo "$key is not in docs/perf.md" && return 1; }
	done
}
if [ -e "$doc" ]; then
	claim "docs/perf.md explains every key" all_keys_explained
else
	skip "docs/perf.md explains every key" "it is not here"
fi

claim "--json and --csv exclude each other" refused exclude write-lat --json --csv --local
claim "--out of another kind is refused" refused "--out lat.txt" write-lat --local --out lat.txt
claim "--out at a server is refused" refused "--out lat.json" write-lat --out lat.json
claim "a place that is not there is found before the run" fails 1 --out none/lat.json -- "$PERF" mr-reg --out none/lat.json
# The 2500th write of the client, which is in the third size, loses the connection.
stops() { # <file>
	! GDRFAB_FAULT=drop=2500:write local_run "$provider" write-bw -s 8:64 -n 1000 -w 10 --out "$1"
}
claim "a size that fails leaves those before it in JSON" stops part.json
claim "a size that fails leaves those before it in CSV" stops part.csv
claim "such a file says that it is incomplete, and why" bash -c '
	grep -q "\"complete\": false" part.json && grep -q "\"error\": \".*GDRFAB_FAULT" part.json &&
	[ "$(grep -c "\"bytes\":" part.json)" -eq 2 ] && [ "$(wc -l <part.csv)" -eq 3 ] && grep -q "false,.*GDRFAB_FAULT" part.csv'
claim "so does a drawing of it" bash -c '"$PERF" plot -o part.svg part.json && grep -q "incomplete" part.svg'
cp part.json kept.json
claim "a run whose first size fails leaves the old file" bash -c '
	! GDRFAB_FAULT=drop=1:write timeout 60 "$PERF" write-bw -s 8:64 --local -p "'"$provider"'" --out part.json && cmp part.json kept.json'
claim "standard output that is full is told, and fails" bash -c '
	for of in "--help" "mr-reg -s 4K -n 10" "mr-reg -s 4K -n 10 --json" "plot --help" "compare lat.json lat.json"; do
		! timeout 20 "$PERF" $of >/dev/full 2>err && grep -q "standard output: No space left" err || { echo "$of"; exit 1; }
	done'
claim "a server whose standard output is full is told, and fails" \
	fails 1 "standard output: No space left" -- bash -c 'exec "$PERF" write-lat --name full.$$ >/dev/full'
mkdir -p dir.json
claim "a directory is not overwritten" fails 1 --out dir.json -- "$PERF" mr-reg -s 4K -n 10 --out dir.json
# ---- plot

claim "plot: latencies" "$PERF" plot -o lat.svg lat.json
claim "plot: a panel for latencies, one for bandwidths" \
	"$PERF" plot -o both.svg --title 'a < b & c' lat.json --label '"mine"' bw.json
claim "plot: the axes say what they are" \
	bash -c 'grep -q "t_typical \[us\]" both.svg && grep -q "bw_average \[MB/s\]" both.svg && grep -q "^bytes" both.svg'
spread=$(for size in 8 64 512 4096; do echo ",{\"bytes\":$size,\"bw_average_mb_s\":$((size * size)),\"path\":\"direct\"}"; done)
echo "{\"program\":\"gdrfab-perf\",\"version\":\"0\",\"run\":{\"test\":\"write-bw\"},\"results\":[${spread#,}]}" >spread.json
claim "plot: bandwidths of sizes far apart go over decades" bash -c '
	"$PERF" plot -o spread.svg spread.json && for tick in 10 100 1000 10000; do grep -qx $tick spread.svg || exit 1; done'
claim "plot: those of sizes close together begin at 0" bash -c '"$PERF" plot -o near.svg bw.json && grep -qx 0 near.svg'
claim "plot: ticks are sizes" bash -c 'grep -qx 4K both.svg && grep -qx 64K both.svg && grep -qx 16 both.svg'
claim "plot: runs are named by test, provider and path" grep -q "^write-lat, $provider, " lat.svg
claim "plot: --label is used, in SVG's writing" has_text both.svg '&quot;mine&quot;'
claim "plot: --title is used, in SVG's writing" has_text both.svg 'a &lt; b &amp; c'
claim "plot: --figure" bash -c '"$PERF" plot -o p99.svg --figure t_p99_usec lat.json && grep -q "t_p99 \[us\]" p99.svg'
claim "plot: --figure that a file has not is named" \
	fails 1 bw.json 'results[0].t_p99_usec: missing' -- "$PERF" plot -o no.svg --figure t_p99_usec bw.json
claim "plot: one size is enough" bash -c '"$PERF" mr-reg -s 4K -n 10 --json >one.json && "$PERF" plot -o one.svg one.json'
if command -v python3 >/dev/null; then
	cat >svg.py <<'END'
import sys, xml.etree.ElementTree as tree
for name, lines in ('lat.svg', 1), ('both.svg', 2), ('one.svg', 1):
    root = tree.parse(name).getroot()
    assert root.tag.endswith('svg'), root.tag
    of = lambda tag: [e for e in root.iter() if e.tag.endswith(tag)]
    points = [e.get('points').split() for e in of('polyline')]
    assert len(of('circle')) > 0 and sum(len(p) > 0 for p in points) >= lines, name
    wide, high = float(root.get('width')), float(root.get('height'))
    for x, y in (map(float, p.split(',')) for line in points for p in line):
        assert 0 <= x <= wide and 0 <= y <= high, (name, x, y)
END
	claim "plot: the drawing is XML, and nothing is drawn outside" python3 svg.py
else
	skip "plot: the drawing is XML, and nothing is drawn outside" "there is no python3"
fi
cp lat.svg kept.svg
# A limit on file size stands for a full disk.
claim "what cannot be written whole leaves the old file" bash -c '
	! (ulimit -f 1 && trap "" XFSZ && timeout 20 "$PERF" plot -o kept.svg lat.json bw.json 2>err) &&
	cat err && grep -qF -e "--out kept.svg" err && cmp kept.svg lat.svg'
claim "no file of a good or a failed run stays beside" bash -c '[ -z "$(find . -name ".?*")" ]'
claim "plot: no file, no drawing" refused FILE.json plot -o x.svg
claim "plot: where to is needed" refused --out plot lat.json
claim "plot: other formats are refused" refused x.png plot -o x.png lat.json
claim "plot: a label without a file is refused" refused "--label x" plot -o x.svg lat.json --label x
claim "plot --help" bash -c '"$PERF" plot --help | grep -q "OUT.svg"'

# ---- compare: files whose figures are known

results() { # <test> <key> <bytes:value...>
	local test=$1 key=$2 rows= pair other=msg_rate_mpps
	shift 2
	[ "$key" != t_typical_usec ] || other=t_p99_usec
	for pair; do
		rows="$rows${rows:+,}{\"bytes\":${pair%%:*},\"$key\":${pair##*:},\"$other\":${pair##*:},\"path\":\"direct\"}"
	done
	echo "{\"program\":\"gdrfab-perf\",\"version\":\"0\",\"run\":{\"test\":\"$test\",\"depth\":${DEPTH:-64}},\"results\":[$rows]}"
}
results write-lat t_typical_usec 8:1.0 16:2.0 32:4.0 >a.json
results write-lat t_typical_usec 8:1.04 16:2.3 64:9.0 >b.json
results write-bw bw_average_mb_s 8:100 16:200 >c.json
DEPTH=1 results write-bw bw_average_mb_s 8:96 16:150 >d.json

claim "compare: ratios" \
	bash -c '"$PERF" compare a.json b.json >out && cat out && grep -qE "^ +8 .* 1\.040 " out && grep -qE "^ +16 .* 1\.150 " out'
claim "compare: sizes that one file has alone" \
	bash -c '"$PERF" compare a.json b.json | grep -c "Only A has 32 bytes\|Only B has 64 bytes" | grep -qx 2'
claim "compare: within the limit" "$PERF" compare a.json b.json --limit 16
claim "compare: a larger latency beyond the limit" \
	fails 1 "b.json is worse than a.json by more than 5 % at 16 bytes" -- "$PERF" compare a.json b.json --limit 5
claim "compare: a smaller latency is not worse" "$PERF" compare b.json a.json --limit 0
claim "compare: a smaller bandwidth beyond the limit" \
	fails 1 "d.json is worse than c.json by more than 5 % at 16 bytes" -- "$PERF" compare c.json d.json --limit 5
claim "compare: a larger bandwidth is not worse" "$PERF" compare d.json c.json --limit 0
claim "compare: what else differs" bash -c '"$PERF" compare c.json d.json | grep -qF "depth: 64 in A, 1 in B"'
claim "compare: nothing differs in one and the same" \
	bash -c '"$PERF" compare lat.json lat.json --limit 0 >out && ! grep -q "differs\|WORSE\|Only" out'
claim "compare: two runs alike differ in nothing that matters" \
	bash -c '"$PERF" compare lat.json lat2.json >out && cat out && ! grep -q "differs" out'
claim "compare: latencies and bandwidths" fails 1 "cannot be compared" -- "$PERF" compare a.json c.json
results write-lat t_typical_usec 128:1 >e.json
claim "compare: no size in common" fails 1 "no size in common" -- "$PERF" compare a.json e.json
if command -v python3 >/dev/null; then
	claim "compare: --json" bash -c '"$PERF" compare c.json d.json --limit 5 --json 2>/dev/null | python3 -c "
import json, sys
got = json.load(sys.stdin)
assert got[\"within_limit\"] is False and [row[\"worse\"] for row in got[\"results\"]] == [False, True], got
assert got[\"results\"][1][\"bw_average_mb_s\"] == {\"a\": 200.0, \"b\": 150.0, \"ratio\": 0.75}, got
assert got[\"differences\"] == {\"depth\": {\"a\": 64, \"b\": 1}}, got
"'
else
	skip "compare: --json" "there is no python3"
fi
claim "compare: one file is not enough" refused "not 1" compare a.json
claim "compare: a limit is a percentage" refused "--limit x" compare a.json b.json --limit x
claim "compare --help" bash -c '"$PERF" compare --help | grep -q "B / A"'

# ---- files of other programs: both commands refuse them, with the names of the file and the key

bad() { # <name of the claim> <what is said> <content>
	printf '%s' "$3" >bad.json
	claim "plot: $1" fails 1 bad.json "$2" -- "$PERF" plot -o bad.svg bad.json
	claim "compare: $1" fails 1 bad.json "$2" -- "$PERF" compare a.json bad.json
}
good=$(cat a.json)
bad "an empty file" "not JSON" ""
bad "what is cut off" "not JSON" "${good%????????}"
bad "what is no JSON" "not JSON" "#bytes #iterations"
bad "NaN" "not JSON" "${good/1.0/NaN}"
bad "a number that is none" "not JSON" "${good/1.0/1e999}"
bad "depth without end" "not JSON" "$(printf '[%.0s' {1..5000})"
bad "a list" "invalid type" "[1]"
bad "another program's JSON" 'missing field `program`' '{"results": []}'
bad "results of another program" "fio" '{"program": "fio", "run": {}, "results": []}'
bad "no run" 'missing field `run`' '{"program": "gdrfab-perf", "results": []}'
bad "no test" "run.test: text is expected" "${good/\"test\"/\"taste\"}"
bad "no results" 'missing field `results`' '{"program": "gdrfab-perf", "run": {"test": "x"}}'
bad "no rows" "results: there are none" '{"program": "gdrfab-perf", "run": {"test": "x"}, "results": []}'
bad "a row that is none" "results[0]: invalid type" '{"program": "gdrfab-perf", "run": {"test": "x"}, "results": [7]}'
bad "a row without a size" 'results[0]: missing field `bytes`' "${good/\"bytes\":8/\"kilos\":8}"
bad "a size of nothing" "results[0].bytes" "${good/\"bytes\":8/\"bytes\":0}"
bad "a row without figures" "results[0]" "${good/t_typical_usec/t_usual_usec}"
bad "a figure of text" 'results[0].t_typical_usec: a number above 0 is expected, not "1.0"' "${good/1.0/\"1.0\"}"
bad "a negative figure" "results[0].t_typical_usec: a number above 0" "${good/1.0/-1.0}"
bad "a figure that is not there" "results[0].t_typical_usec" "${good/1.0/null}"
bad "rows of two kinds" "results[1]" "${good/\"bytes\":16,\"t_typical_usec\"/\"bytes\":16,\"bw_average_mb_s\"}"
claim "no drawing came of any of them" [ ! -e bad.svg ]
claim "a file that is not there is named" fails 1 none.json -- "$PERF" plot -o x.svg none.json
printf '%s' "${good/write-lat/$'\\u001b[2J'}" >escape.json
export ESC=$'\033'
claim "a file cannot write to the terminal as it likes" \
	bash -c '"$PERF" compare a.json escape.json >out && ! grep -qF "$ESC" out && grep -qF "?[2J" out'
claim "nor into a drawing" \
	bash -c '"$PERF" plot -o escape.svg escape.json && ! grep -qF "$ESC" escape.svg && grep -qF "?[2J" escape.svg'
claim "--help tells of results" bash -c '"$PERF" --help | grep -q -e "--out FILE" && "$PERF" --help | grep -q "gdrfab-perf plot"'
exit 0

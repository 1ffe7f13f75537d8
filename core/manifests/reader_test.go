// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
)

// bench is a folder that a test edits and reads.
type bench struct {
	*testing.T
	dir    string
	reader *reader
	clock  time.Duration // added to the time of the reader
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, dir: t.TempDir()}
	b.reader = newReader(originOf(b.dir), "", config.PortRange{})
	b.reader.now = func() time.Time { return time.Now().Add(b.clock) }
	return b
}

// put replaces a file as a careful writer does: by renaming a complete one.
func (b *bench) put(name, text string) {
	b.Helper()
	write(b, b.dir, ".new", text)
	if err := os.Rename(filepath.Join(b.dir, ".new"), filepath.Join(b.dir, name)); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) remove(name string) {
	b.Helper()
	if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
		b.Fatal(err)
	}
}

// expect scans and compares the names of the objects, in their order, and the
// places of the problems.
func (b *bench) expect(what string, names []string, problems ...string) *folder {
	b.Helper()
	f, err := b.reader.scan(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	var got, at []string
	for _, p := range f.objects {
		got = append(got, p.key.name)
	}
	for _, p := range f.problems {
		at = append(at, fmt.Sprintf("%s:%d", p.File, p.Line))
	}
	equal(b.T, what, got, names)
	equal(b.T, what+", problems", at, problems)
	return f
}

// TestHold follows one file through changes: what is kept, and what is removed.
func TestHold(t *testing.T) {
	const sep = "---\n"
	a, b, c := svc("a"), svc("b"), svc("c")
	broken, misspelt := "kind: [\n", strings.Replace(svc("b"), "ports", "prots", 1)
	w := newBench(t)
	for _, step := range []struct {
		what, text string
		names      string
		problems   []string
	}{
		{"fine", a + sep + b + sep + c, "a b c", nil},
		{"b is rejected, but known by name", a + sep + misspelt + sep + c, "a c b", []string{"x.yaml:3"}},
		{"a goes while b is rejected", misspelt + sep + c, "c b", []string{"x.yaml:1"}},
		{"b goes, too", c, "c", nil},
		{"all again", a + sep + b + sep + c, "a b c", nil},
		{"b cannot be parsed", a + sep + broken + sep + c, "a c b", []string{"x.yaml:3"}},
		{"a is removed afterwards", broken + sep + c, "c b", []string{"x.yaml:1"}},
		{"it breaks in another way: what vanishes now may be that one", broken + "x\n", "b c", []string{"x.yaml:2"}},
		{"whole again: what is not there is gone", b, "b", nil},
		{"broken from the start of another story", b + sep + broken, "b", []string{"x.yaml:3"}},
		{"the rejected one is not named any more", a + sep + broken, "a", []string{"x.yaml:3"}},
		{"a headless Service is no lost one", strings.Replace(a, "10.96.0.1", "None", 1), "a", nil},
		{"empty", "", "", nil},
		{"bad from the start: nothing to hold", misspelt + sep + broken, "", []string{"x.yaml:1", "x.yaml:3"}},
	} {
		w.put("x.yaml", step.text)
		w.expect(step.what, strings.Fields(step.names), step.problems...)
	}
}

// TestHoldFile has a file that cannot be read any more, for various reasons.
func TestHoldFile(t *testing.T) {
	w := newBench(t)
	w.reader.limits.documents, w.reader.limits.fileBytes = 3, 1000
	for what, text := range map[string]string{
		"too many documents": strings.Repeat(svc("x")+"---\n", 4),
		"too large":          strings.Repeat("#", 1001),
		"not text":           "\x00",
	} {
		w.put("x.yaml", svc("a")+"---\n"+svc("b"))
		w.expect("before", []string{"a", "b"})
		w.put("x.yaml", text)
		f := w.expect(what, []string{"a", "b"}, fmt.Sprintf("x.yaml:%d", map[string]int{"too many documents": 7, "not text": 1}[what]))
		if f.unsettled {
			t.Errorf("%s: taken as unsettled", what)
		}
	}
	w.remove("x.yaml")
	w.expect("gone", nil)
}

// TestReadableWins moves an object out of a file that is broken.
func TestReadableWins(t *testing.T) {
	w := newBench(t)
	w.put("a.yaml", svc("web"))
	w.expect("before", []string{"web"})
	w.put("a.yaml", "kind: [")
	w.put("b.yaml", svc("web"))
	f := w.expect("moved", []string{"web"}, "a.yaml:1")
	if got := f.objects[0].whereNow(); got != "b.yaml:1" {
		t.Errorf("the object of %s is used", got)
	}
	w.put("c.yaml", svc("web"))
	w.expect("twice", []string{"web"}, "a.yaml:1", "c.yaml:1")
	w.remove("b.yaml")
	f = w.expect("the second one follows", []string{"web"}, "a.yaml:1")
	if got := f.objects[0].whereNow(); got != "c.yaml:1" {
		t.Errorf("the object of %s is used", got)
	}
}

// TestDecodedOnce counts what is decoded again after an edit.
func TestDecodedOnce(t *testing.T) {
	w := newBench(t)
	docs := make([]string, 50)
	for i := range docs {
		docs[i] = manifest(i, "10.244.1.2")
	}
	decodes := func(what string, want int) {
		t.Helper()
		before := w.reader.decoded
		w.put("x.yaml", strings.Join(docs, "---\n"))
		f, err := w.reader.scan(context.Background())
		if err != nil || len(f.problems) > 0 {
			t.Fatal(err, f.problems)
		}
		if got := w.reader.decoded - before; got != want {
			t.Errorf("%s: %d documents were decoded, want %d", what, got, want)
		}
		for _, p := range f.objects {
			if got := p.moved(); *got.where() != p.whereNow() {
				t.Fatalf("%s: %s is in %s, not %s", what, p.key, p.whereNow(), *got.where())
			}
		}
	}
	decodes("first", 100)
	decodes("nothing", 0)
	docs[20] = manifest(20, "10.244.1.3")
	decodes("one changed", 1)
	docs[0] = "# a comment more\n\n" + docs[0]
	decodes("all moved", 0)
	docs[3], docs[40] = docs[40], docs[3]
	decodes("two swapped", 0)
	docs = slices.Delete(docs, 10, 11)
	decodes("one removed", 0)
	docs = append(docs[:5:5], append([]string{manifest(77, "10.244.1.9")}, docs[5:]...)...)
	decodes("one inserted", 2)

	items := make([]string, 50)
	for i := range items {
		items[i] = "- " + strings.ReplaceAll(strings.TrimSpace(strings.Split(manifest(i, ""), "---\n")[0]), "\n", "\n  ") + "\n"
	}
	docs = []string{"apiVersion: v1\nitems:\n" + strings.Join(items, "") + "kind: List\n"}
	decodes("a list", 50)
	docs[0] = strings.Replace(docs[0], "web-7\n", "web-700\n", 1)
	decodes("an item of the list", 1)
}

// TestSettle writes a file in place and slowly.
func TestSettle(t *testing.T) {
	w := newBench(t)
	whole := svc("a") + "---\n" + svc("b")
	write(t, w.dir, "x.yaml", whole)
	w.expect("before", []string{"a", "b"})
	for _, part := range []string{"", svc("a")[:20], svc("a")} {
		write(t, w.dir, "x.yaml", part)
		if f := w.expect("half-written", []string{"a", "b"}); !f.unsettled {
			t.Error("half-written and taken as settled")
		}
		w.clock += settleTime / 2
	}
	if f := w.expect("not for long", []string{"a", "b"}); !f.unsettled {
		t.Error("settled too soon")
	}
	w.clock += settleTime
	if f := w.expect("settled", []string{"a"}); f.unsettled {
		t.Error("does not settle")
	}
	write(t, w.dir, "x.yaml", whole+"---\n"+svc("c"))
	w.expect("longer, at once", []string{"a", "b", "c"})
	w.put("x.yaml", svc("c"))
	w.expect("shorter by renaming, at once", []string{"c"})
}

// TestDocumentLimit has small things in large numbers, in every form.
func TestDocumentLimit(t *testing.T) {
	const n = 100_000
	for what, text := range map[string]string{
		"documents":   strings.Repeat("a\n---\n", n),
		"JSON values": strings.Repeat("{}", n),
		"JSON items":  `{"kind":"List","items":[` + strings.Repeat("0,", n) + `0]}`,
		"YAML items":  "kind: List\nitems:\n" + strings.Repeat("- \n", n),
	} {
		if docs := split([]byte(text), 10); len(docs) != 11 {
			t.Errorf("%s: %d documents", what, len(docs))
		}
	}
}

func TestTooManyFiles(t *testing.T) {
	w := newBench(t)
	w.reader.limits.files = 2
	w.put("m.yaml", svc("m"))
	w.put("o.yaml", svc("o"))
	w.expect("within the limit", []string{"m", "o"})
	w.put("a.yaml", svc("a"))
	w.put("b.yaml", svc("b"))
	f := w.expect("new ones do not push out old ones", []string{"m", "o"}, ":0")
	if len(f.problems) == 1 && f.problems[0].Text != "2 files skipped: the limit is 2" {
		t.Error(f.problems[0].Text)
	}
	w.remove("o.yaml")
	w.expect("room for one", []string{"a", "m"}, ":0")
}

func TestUnchangedIsNotRead(t *testing.T) {
	w := newBench(t)
	w.put("x.yaml", svc("a"))
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(w.dir, "x.yaml"), old, old); err != nil {
		t.Fatal(err)
	}
	w.expect("first", []string{"a"})
	data, info, err := w.reader.files["x.yaml"].load(os.DirFS(w.dir), 1<<20, 1<<20, time.Now())
	if data != nil || info != nil || err != nil {
		t.Errorf("an unchanged file was read again: %q, %v", data, err)
	}
	young := time.Now()
	if err := os.Chtimes(filepath.Join(w.dir, "x.yaml"), young, young); err != nil {
		t.Fatal(err)
	}
	w.expect("touched", []string{"a"})
	if data, _, _ = w.reader.files["x.yaml"].load(os.DirFS(w.dir), 1<<20, 1<<20, time.Now()); data == nil {
		t.Error("a file that was modified just before it was read may hide a change, and is not read again")
	}
}

func TestCancel(t *testing.T) {
	w := newBench(t)
	w.put("x.yaml", svc("a"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := w.reader.scan(ctx); err == nil {
		t.Error("no error")
	}
	w.expect("a cancelled reading leaves no trace", []string{"a"})
}

func TestNoFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "none")
	_, err := Read(context.Background(), dir, config.PortRange{})
	if err == nil || !strings.Contains(err.Error(), "manifests "+dir+": cannot be read: ") {
		t.Errorf("error %v", err)
	}
}

// What is kept of a read must not lie scattered over the memory in which the documents
// were decoded, most of which is garbage by then: a page goes back only as a whole.
func TestReadLeavesNoSparseMemory(t *testing.T) {
	const files, each = 20, 100
	dir := t.TempDir()
	for i := range files {
		var text strings.Builder
		for n := range each {
			text.WriteString(manifest(i*each+n, "10.244.1.2") + "---\n")
		}
		write(t, dir, fmt.Sprintf("%d.yaml", i), text.String())
	}
	measure := func() (live, sparse int64) {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what the first one found is swept
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc), int64(m.HeapInuse - m.HeapAlloc)
	}
	before, sparseBefore := measure()
	r := newReader(originOf(dir), dir, config.PortRange{})
	f, err := r.scan(context.Background())
	if err != nil || len(f.objects) != 2*files*each {
		t.Fatal(err, len(f.objects))
	}
	f.index = nil // as after a delivery
	live, sparse := measure()
	live, sparse = live-before, sparse-sparseBefore
	t.Logf("%d bytes an object, and %d around them", live/int64(2*files*each), sparse/int64(2*files*each))
	if sparse > live*2/5 { // measured: 8 to 25 %; 46 to 75 % where small values were allocated one by one
		t.Errorf("%d bytes are kept for %d that are in use", live+sparse, live)
	}
	runtime.KeepAlive(r)
}

// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
)

func TestASingleFile(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, dir, "other.yaml", svc("other"))
	write(t, elsewhere, "one.txt", svc("one")+"---\nfoo: bar\n")
	link := filepath.Join(dir, "one") // it was named, so its ending does not matter, nor where it leads
	if err := os.Symlink(filepath.Join(elsewhere, "one.txt"), link); err != nil {
		t.Skip(err) // Windows without the right to
	}
	r, err := Read(context.Background(), link, config.PortRange{})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Services) != 1 || r.Services[0].Name.Name != "one" || r.Services[0].Where != link+":1" {
		t.Errorf("services: %v", r.Services)
	}
	if len(r.Problems) != 1 || !strings.HasPrefix(r.Problems[0].String(), link+":") {
		t.Errorf("problems: %v", r.Problems)
	}
}

// TestASingleFileIsFollowed changes, removes and brings back the one file.
func TestASingleFileIsFollowed(t *testing.T) {
	b := newBench(t)
	b.put("x.yaml", svc("a"))
	b.put("y.yaml", svc("never"))
	rec := newRecord()
	ctx, cancel := context.WithCancel(t.Context())
	s := &Source{Dir: filepath.Join(b.dir, "x.yaml"), Log: quiet(), Scan: 10 * time.Millisecond}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, rec) }()
	r := running{b, rec}
	r.eventually("synced", func() bool { return len(r.syncs()) == 1 })
	b.put("x.yaml", svc("b"))
	r.eventually("changed", func() bool { return rec.has("b") && !rec.has("a") })
	b.remove("x.yaml")
	r.eventually("lost", func() bool { return len(r.complaints()) == 1 })
	if !rec.has("b") || rec.has("never") {
		t.Error("the last content of the file is not used")
	}
	later := time.Now().Add(time.Hour)
	if why := s.Stale(later); len(why) != 1 || !strings.Contains(why[0], "x.yaml unreadable for 3") || s.Age(later) < time.Hour {
		t.Errorf("stale: %q", why)
	}
	if why := s.Stale(time.Now()); len(why) > 0 {
		t.Errorf("a moment later that is no reason yet: %q", why)
	}
	b.put("x.yaml", svc("c"))
	r.eventually("back", func() bool { return rec.has("c") && len(s.Stale(later)) == 0 })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestStdin reads a stream once, and does not outlive its context while the
// stream goes on.
func TestStdin(t *testing.T) {
	read := func(ctx context.Context, from io.Reader) (Result, error) {
		return newReader(&input{from: from}, Stdin, config.PortRange{}).Read(ctx)
	}
	r, err := read(t.Context(), strings.NewReader(svc("a")+"---\n"+svc("b")))
	if err != nil || len(r.Services) != 2 || !strings.HasPrefix(r.Services[0].Where, "stdin:") {
		t.Errorf("%v, %v", r.Services, err)
	}
	endless, writer := io.Pipe()
	defer writer.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := read(ctx, endless); err == nil {
		t.Error("a stream without end was read")
	}
	if _, err := read(t.Context(), io.LimitReader(zeros{}, 65<<20)); err == nil || !strings.Contains(err.Error(), "larger than the limit of 67108864 bytes") {
		t.Errorf("a stream too large: %v", err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// TestFolderLimits fills a folder beyond its limits: what was read first stays.
func TestFolderLimits(t *testing.T) {
	b := newBench(t)
	b.put("m.yaml", svc("m"))
	b.reader.limits.allBytes = int64(2*len(svc("m")) + 50)
	b.expect("one", []string{"m"})
	b.put("a.yaml", svc("a"))
	b.expect("two", []string{"a", "m"})
	b.put("0.yaml", svc("o"))
	f := b.expect("too large", []string{"a", "m"}, "0.yaml:0")
	if len(f.problems) == 1 && !strings.Contains(f.problems[0].Text, "the folder exceeds the limit") {
		t.Error(f.problems[0])
	}
	b.remove("m.yaml")
	b.expect("room again", []string{"o", "a"})
	b.reader.limits.allDocuments = 3
	b.put("z.yaml", svc("y")+"---\n"+svc("z"))
	b.reader.limits.allBytes = 1 << 20
	b.expect("too many documents", []string{"o", "a"}, "z.yaml:0")
	b.put("z.yaml", svc("z"))
	b.expect("fits", []string{"o", "a", "z"})
}

func TestProblemsOfAFolderAreBounded(t *testing.T) {
	b := newBench(t)
	b.put("x.yaml", strings.Repeat("---\nfoo: bar\n", 5000)+"---\n"+svc("a"))
	f, err := b.reader.scan(t.Context())
	if err != nil || len(f.problems) != 1001 || f.problems[1000].Text != "4000 more problems" || len(f.objects) != 1 {
		t.Fatalf("%d problems, %v", len(f.problems), err)
	}
	if p := f.problems[1000].Model(); p.Why != model.WhyInvalid || p.Detail != "4000 more problems" {
		t.Error(p)
	}
}

func TestExposedFolder(t *testing.T) {
	for mode, warned := range map[os.FileMode]bool{0o755: false, 0o777: true} {
		dir := t.TempDir()
		write(t, dir, "x.yaml", svc("a"))
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		rec := newRecord()
		done := make(chan error, 1)
		go func() {
			done <- (&Source{Dir: dir, Log: slog.New(slog.NewTextHandler(&out, nil))}).Run(ctx, rec)
		}()
		running{&bench{T: t}, rec}.eventually("synced", func() bool { return len(rec.syncs()) == 1 })
		cancel()
		<-done
		if got := strings.Count(out.String(), "manifests are world-writable"); got != map[bool]int{true: 1}[warned] && os.PathSeparator == '/' {
			t.Errorf("%s: %d warnings: %s", mode, got, out.String())
		}
	}
}

func (r *record) has(service string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.services[model.ServiceName{Namespace: "default", Name: service}] != nil
}

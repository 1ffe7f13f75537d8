// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/question"
	"github.com/tandem-proxy/tandem/core/snapshot"
)

// The pages of a snapshot are served on loopback alone, until interrupted.
func TestUIOfASnapshot(t *testing.T) {
	f := &snapshot.File{
		Header:   snapshot.Header{Format: snapshot.Format, Mode: "nftables", Config: config.Default()},
		Services: []*model.Service{{Name: model.ServiceName{Namespace: "shop", Name: "web"}}},
		Status:   question.Status{Node: "node-7", Services: []question.Service{{Name: "shop/web", State: "Programmed"}}},
		History:  history.Document{Entries: []history.Entry{}},
	}
	var text bytes.Buffer
	if err := snapshot.Write(&text, f); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "a.snapshot")
	if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var out, errs written
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"tandem", "ui", "--snapshot", path}, &out, &errs) }()
	t.Cleanup(cancel)
	for end := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), "\n"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(errs.String())
		}
	}
	res, err := http.Get(strings.TrimSpace(out.String()) + "?q=web")
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(res.Body)
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	if err != nil || !strings.Contains(string(page), "node-7") || !strings.Contains(string(page), "A snapshot of") || !strings.Contains(string(page), "shop/web") {
		t.Errorf("%v\n%s", err, page)
	}
	cancel()
	if code := <-done; code != exitOK {
		t.Errorf("exit code %d: %s", code, errs.String())
	}
	for _, args := range [][]string{{"ui"}, {"ui", "--snapshot", path, "--listen", "0.0.0.0:0"}} {
		if code, _, stderr := tandem(t, args...); code != exitUsage {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
}

// page is the text of a page, which must have an answer.
func page(t *testing.T, address string, code int) string {
	t.Helper()
	res, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != code {
		t.Fatalf("%s: %v, %s\n%s", address, err, res.Status, text)
	}
	return string(text)
}

// The pages of a cluster are those of its nodes, by either way: one for all, and what a node itself would show of a
// Service, its changes and a connection.
func TestUIOfACluster(t *testing.T) {
	for name, args := range map[string][]string{
		viaExec:  {"/usr/local/bin/kubectl-tandem", "ui"},
		viaProxy: {"tandem", "ui", "--cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			w := three(t)
			w.account = true
			ctx, cancel := context.WithCancel(t.Context())
			var out, errs written
			done := make(chan int, 1)
			go func() {
				done <- run(ctx, append(args, "--via", name, "--kubeconfig", w.kubeconfig), &out, &errs)
			}()
			t.Cleanup(cancel)
			for end := time.Now().Add(time.Minute); !strings.Contains(out.String(), "\n"); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal(errs.String())
				}
			}
			at := strings.TrimSuffix(strings.TrimSpace(out.String()), "/ui")
			all := page(t, at+"/ui", http.StatusOK)
			for end := time.Now().Add(time.Minute); strings.Contains(all, "not asked yet"); all = page(t, at+"/ui", http.StatusOK) {
				if time.Now().After(end) {
					t.Fatal(all)
				}
			}
			for _, want := range []string{"3 of 3 nodes", `href="/node/a/ui"`, `href="/node/c/ui"`, "nftables", `<span class="node">c</span>`} {
				if !strings.Contains(all, want) {
					t.Errorf("without %q:\n%s", want, all)
				}
			}
			for path, want := range map[string]string{
				"/node/b/ui":                     `href="/node/b/ui/service/default/web"`,
				"/node/b/ui/service/default/web": "10.244.1.2:8080",
				"/node/b/ui/history":             "Service added",
				"/node/b/ui/traffic":             "with connections",
				"/node/b/ui/explain?from=outside&to=default/web:80":         "each decision",
				"/node/b/ui/explain?trace=1&from=outside&to=default/web:80": "objects read in",
			} {
				if text := page(t, at+path, http.StatusOK); !strings.Contains(text, want) {
					t.Errorf("%s without %q:\n%s", path, want, text)
				}
			}
			if text := page(t, at+"/node/nobody/ui", http.StatusServiceUnavailable); !strings.Contains(text, "nobody") {
				t.Error(text)
			}
			other := viaProxy
			if name == viaProxy {
				other = viaExec
			}
			w.mu.Lock()
			for asked, n := range w.asked {
				if strings.HasSuffix(asked, other) {
					t.Errorf("%d requests by the other way, %s", n, asked)
				}
			}
			w.mu.Unlock()
			cancel()
			if code := <-done; code != exitOK {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
		})
	}
	for _, args := range [][]string{{"ui", "--cluster", "--listen", "0.0.0.0:0"}, {"ui", "--cluster", "--snapshot", "x"}, {"ui", "--context", "c", "--snapshot", "x"}} {
		if code, _, stderr := tandem(t, args...); code != exitUsage {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
	if code, _, stderr := tandem(t, "ui", "--cluster", "--kubeconfig", "/nowhere"); code != exitFailure || !strings.Contains(stderr, "kubeconfig") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}

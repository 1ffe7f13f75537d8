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

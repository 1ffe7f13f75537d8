// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/tandem-proxy/tandem/core/config"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/resolve"
	"github.com/tandem-proxy/tandem/core/track"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

const hnsNode = `
---
apiVersion: v1
kind: Node
metadata: {name: win-1}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
`

// windowsNode is an emulated HNS with the Services of a folder programmed into it.
func windowsNode(t *testing.T, dir string) (*hnsemu.Emulator, openHNS) {
	t.Helper()
	emu := hnsemu.New(hnsemu.WS2025)
	emu.AddNetwork("cbr0", hns.TypeL2Bridge)
	settings := hns.Settings{Journal: filepath.Join(t.TempDir(), "journal")}
	c := config.Default()
	c.Manifests, c.NodeName, c.Windows.DSR = dir, "win-1", true
	in, err := readInputs(t.Context(), &c)
	if err != nil {
		t.Fatal(err)
	}
	host := resolve.Host(&c, ownNode(in.Nodes, c.NodeName), in.ServiceCIDRs, model.Machine{})
	_, ports := track.Once(host, &in.Objects)
	b, err := hns.Open(t.Context(), emu.Client(), &c, settings)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.SetHost(host)
	for _, p := range ports {
		b.Update([]model.Delta{{New: p}})
	}
	if _, err := b.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return emu, func() (hns.HNS, hns.Settings, error) { return emu.Client(), settings, nil }
}

// hnsSays runs a verb of hns on an HNS.
func hnsSays(t *testing.T, open openHNS, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := newHNS(open)
	c.SilenceErrors, c.SilenceUsage = true, true
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	err := c.ExecuteContext(context.Background())
	return out.String(), err
}

func TestHNSDump(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": webYAML + hnsNode})
	_, open := windowsNode(t, dir)
	table, err := hnsSays(t, open, "dump")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"HNS 15.5, network cbr0 (L2Bridge): 0 load balancers without DSR", "remote endpoint 10.244.1.2", "load balancer 10.96.0.10:80/tcp", "to port 8080 of 10.244.1.2 10.244.1.3 DSR on 192.0.2.1"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	text, err := hnsSays(t, open, "dump", "-o", "json")
	var d hns.Dump
	if err != nil || json.Unmarshal([]byte(text), &d) != nil || len(d.Objects) != 3 {
		t.Errorf("%s, %v", text, err)
	}
}

func TestHNSDiff(t *testing.T) {
	dir := folder(t, map[string]string{"web.yaml": webYAML + hnsNode})
	emu, open := windowsNode(t, dir)
	args := []string{"diff", "--manifests", dir, "--hostname-override", "win-1"}
	if text, err := hnsSays(t, open, args...); err != nil || text != "diff: 3 objects wanted, 0 differences\n" {
		t.Errorf("%s, %v", text, err)
	}
	emu.Change(emu.Balancers()[0].ID, func(lb *hns.LoadBalancer) { lb.HostComputeEndpoints = lb.HostComputeEndpoints[:1] })
	text, err := hnsSays(t, open, args...)
	want := `differs  load balancer 10.96.0.10:80/tcp
         wanted to port 8080 of 10.244.1.2 10.244.1.3 DSR on 192.0.2.1
         found  to port 8080 of 10.244.1.2 DSR on 192.0.2.1
diff: 3 objects wanted, 1 difference
`
	if !errors.As(err, new(differsError)) || text != want {
		t.Errorf("%v\n%s", err, text)
	}
	text, err = hnsSays(t, open, append(args, "-o", "json")...)
	var d hns.Diff
	if !errors.As(err, new(differsError)) || json.Unmarshal([]byte(text), &d) != nil || len(d.Changes) != 1 || d.Changes[0].State != hns.Differs {
		t.Errorf("%s, %v", text, err)
	}
}

func TestHNSUsage(t *testing.T) {
	_, open := windowsNode(t, folder(t, map[string]string{"web.yaml": webYAML + hnsNode}))
	for _, args := range [][]string{{"dump", "-o", "native"}, {"diff"}, {"dump", "x"}} {
		if _, err := hnsSays(t, open, args...); !errors.As(err, new(usageError)) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// A rejection is reported: it is the reason why nothing differs.
func TestHNSDiffSaysWhatItRefused(t *testing.T) {
	files := map[string]string{"web.yaml": webYAML + hnsNode}
	_, open := windowsNode(t, folder(t, files))
	files["bad.yaml"] = "apiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {prots: []}\n"
	text, err := hnsSays(t, open, "diff", "--manifests", folder(t, files), "--hostname-override", "win-1")
	if err != nil || !strings.Contains(text, "bad.yaml:4") || !strings.Contains(text, "prots") {
		t.Errorf("%s, %v", text, err)
	}
}

// A command that waited for an API server in vain reports the reason.
func TestInputsSayWhatFailed(t *testing.T) {
	server, err := apitest.Start(apitest.Options{Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	server.Fail(apitest.Rule{Resource: "endpointslices", Status: http.StatusForbidden, Message: "who are you"})
	c := config.Default()
	c.API.Server, c.NodeName = server.URL(), "win-1"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err = readInputs(ctx, &c)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "endpointslices: ") || !strings.Contains(err.Error(), "who are you") {
		t.Errorf("got %v", err)
	}
}

// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/watch/apitest"
	"github.com/tandem-proxy/tandem/linux/netns"
)

// fullHistory is the goal for the memory of a full history, in bytes. From run to run the runtime keeps
// one to two megabytes more or less beside what is in use, so that a run over it is printed, and one over
// twice of it fails.
const fullHistory = 4 << 20

// A running tandem whose history is full of changes of an API server, each with a sync of its own, has little
// more in memory than after the first 500. That is anonymous memory: how many pages of the program are mapped
// in is the kernel's.
func TestMemoryOfAFullHistory(t *testing.T) {
	h := &historian{testNode: newTestNode(t)}
	var err error
	h.api, err = apitest.Start(apitest.Options{Plain: true, Listen: func() (l net.Listener, err error) {
		err = h.Do(netns.Node, func() error { l, err = net.Listen("tcp", "127.0.0.1:0"); return err })
		return l, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.api.Stop)
	for i := range historians {
		h.api.Put(apitest.Service(&model.Service{
			Name: model.ServiceName{Namespace: "shop", Name: fmt.Sprint("service-", i)}, Type: model.ClusterIP,
			ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(10 + i)})}, Ports: []model.ServicePort{{Proto: model.TCP, Port: 80}},
		}))
	}
	h.pid = h.serve("--master", h.api.URL(), "--proxy-mode", "nftables").Process.Pid

	h.fill(500)
	resident, anonymous := h.rest(40, 0)
	h.fill(history.Most)
	fullResident, fullAnonymous := h.rest(150, anonymous+fullHistory)
	goal := "met"
	if fullAnonymous > anonymous+fullHistory {
		goal = "MISSED"
	}
	t.Logf("with the history full: resident %.1f -> %.1f MB, anonymous %.1f -> %.1f MB (goal: at most 4 MB more: %s)",
		mb(resident), mb(fullResident), mb(anonymous), mb(fullAnonymous), goal)
	if fullAnonymous > anonymous+2*fullHistory {
		t.Errorf("a full history takes %.1f MB", mb(fullAnonymous-anonymous))
	}
}

// historians is how many Services there are.
const historians = 100

// historian is a node with a tandem whose history fills.
type historian struct {
	testNode
	api  *apitest.Server
	pid  int
	made int
}

// fill changes EndpointSlices until so many changes, and so many syncs, have come. What the sync under
// way leaves no time for shares the next one.
func (h *historian) fill(most uint64) {
	h.Helper()
	for end := time.Now().Add(5 * time.Minute); h.syncs() < most; {
		if time.Now().After(end) {
			h.Fatalf("%d syncs after %d changes", h.syncs(), h.made)
		}
		for range 500 {
			i := h.made % historians
			h.api.Put(apitest.Slice(&model.Slice{
				Name: model.SliceName{Namespace: "shop", Name: fmt.Sprintf("service-%d-abcde", i)}, Service: fmt.Sprint("service-", i),
				Ports: []model.SlicePort{{Proto: model.TCP, Port: 8080}},
				Endpoints: []model.SliceEndpoint{{
					Addr: netip.AddrFrom4([4]byte{10, 244, byte(h.made / historians % 250), byte(10 + i)}), State: model.Ready | model.Serving,
				}},
			}))
			h.made++
			time.Sleep(time.Millisecond)
		}
	}
}

// syncs is the number of the last sync that applied a change.
func (h *historian) syncs() uint64 {
	h.Helper()
	code, out := h.ask("history", "--limit", "1", "-o", "json")
	var d history.Document
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != exitOK {
		h.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	if len(d.Entries) == 0 || d.Entries[0].Sync == nil {
		return 0
	}
	return min(d.Total, d.Entries[0].Sync.Number)
}

// rest returns, in bytes, resident memory and the least that its anonymous part was in a time in which garbage goes
// back: the runtime collects at least every two minutes. It ends after so many seconds, or when that is at most enough.
func (h *historian) rest(seconds int, enough uint64) (resident, anonymous uint64) {
	h.Helper()
	anonymous = math.MaxUint64
	for range seconds {
		if anonymous <= enough {
			break
		}
		time.Sleep(time.Second)
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.pid))
		if err != nil {
			h.Fatal(err)
		}
		resident, anonymous = h.field(text, "VmRSS:"), min(anonymous, h.field(text, "RssAnon:"))
	}
	return resident, anonymous
}

// field returns a field of /proc/PID/status in bytes.
func (h *historian) field(text []byte, name string) uint64 {
	h.Helper()
	_, rest, _ := strings.Cut(string(text), name)
	line, _, _ := strings.Cut(rest, " kB")
	kb, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
	if err != nil {
		h.Fatal(err)
	}
	return kb << 10
}

func mb(bytes uint64) float64 { return float64(bytes) / (1 << 20) }

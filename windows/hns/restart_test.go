// SPDX-License-Identifier: Apache-2.0

package hns_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/test/hnsemu"
)

// web is two Services, programmed.
func web(r *rig) {
	r.Helper()
	r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
	r.set("api", "10.96.0.11", "10.244.2.2 10.244.2.3")
	r.begin()
	r.emu.Forget()
}

func served(r *rig) {
	r.Helper()
	r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
	r.serves("10.96.0.11", "10.244.2.2 10.244.2.3")
}

func TestARestartWritesNothing(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		web(r)
		r.restart()
		r.begin()
		served(r)
		r.gaps(0)
		r.unwritten()
	})
}

// Without its journal a proxy does not know what is its own, but finds it where
// it wants it.
func TestALostJournal(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		web(r)
		if err := os.Remove(r.settings.Journal); err != nil {
			r.Fatal(err)
		}
		r.restart()
		r.begin()
		served(r)
		r.gaps(0)
		r.unwritten()
		r.restart() // and knows again
		r.ports = nil
		r.begin()
		r.serves("10.96.0.10", "")
	})
}

func TestAServiceThatWentMeanwhileIsRemoved(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		foreign := r.others("10.96.0.99")
		web(r)
		delete(r.ports, "web")
		r.restart()
		r.begin()
		r.serves("10.96.0.10", "")
		r.serves("10.96.0.11", "10.244.2.2 10.244.2.3")
		r.serves("10.96.0.99", "10.244.1.77")
		if err := r.backend.Remove(r.Context()); err != nil {
			r.Fatal(err)
		}
		if bs := r.emu.Balancers(); len(bs) != 1 || bs[0].ID != foreign || r.remotes() != "" {
			r.Errorf("left: %v, %s", bs, r.remotes())
		}
	})
}

// The journal's folder is made before it is read: what another user has put there
// is gone by then. A folder that cannot be closed is an error.
func TestTheJournalsFolderIsMadeFirst(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		foreign := r.others("10.96.0.99")
		if err := os.WriteFile(r.settings.Journal, []byte("tandem-hns 1\nlb "+foreign+"\n"), 0o600); err != nil {
			r.Fatal(err)
		}
		r.settings.Folder = func(_ string, files ...string) error {
			for _, f := range files {
				if err := os.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
			return nil
		}
		r.restart()
		web(r)
		served(r)
		r.serves("10.96.0.99", "10.244.1.77")

		r.settings.Folder = func(dir string, _ ...string) error { return errors.New(dir + " is open") }
		if _, err := hns.NewDriver(r.emu.Client(), r.version, r.settings); err == nil || !strings.Contains(err.Error(), "is open") {
			r.Errorf("got %v", err)
		}
	})
}

// The journal of a newer tandem is rejected, with what to do, and stays unchanged: taken
// for empty, all load balancers would be foreign. A newer word is ignored.
func TestAJournalOfANewerTandem(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		text, err := os.ReadFile(r.settings.Journal)
		if err != nil {
			r.Fatal(err)
		}
		rest, ok := strings.CutPrefix(string(text), "tandem-hns 1\n")
		if !ok {
			r.Fatalf("the journal begins with something else:\n%s", text)
		}
		for _, tt := range []struct{ text, err string }{
			{"tandem-hns 2\n" + rest, "format 2, this one reads format 1"},
			{"garbage", "not a journal"},
			{"tandem-hns 1\nwhatever 1 2\n" + rest, ""},
		} {
			if err := os.WriteFile(r.settings.Journal, []byte(tt.text), 0o600); err != nil {
				r.Fatal(err)
			}
			d, err := hns.NewDriver(r.emu.Client(), r.version, r.settings)
			switch {
			case tt.err == "" && err != nil:
				r.Errorf("%.20q: %v", tt.text, err)
			case tt.err == "":
				_ = d.Close()
			case err == nil || !strings.Contains(err.Error(), tt.err):
				r.Errorf("%.20q: got %v", tt.text, err)
			default:
				if now, err := os.ReadFile(r.settings.Journal); err != nil || string(now) != tt.text {
					r.Errorf("%.20q became %.20q (%v)", tt.text, now, err)
				}
			}
		}
		r.restart()
		r.begin()
		served(r)
		r.unwritten()
	})
}

// A reading that ends after the driver was closed writes nothing: the journal may be another
// process's by then.
func TestTheJournalIsLeftAtTheEnd(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		if err := r.driver.Close(); err != nil {
			r.Fatal(err)
		}
		const others = "tandem-hns 1\nlb another\n"
		if err := os.WriteFile(r.settings.Journal, []byte(others), 0o600); err != nil {
			r.Fatal(err)
		}
		r.emu.Remove(r.balancer("10.96.0.10").ID)
		if err := r.driver.Observe(r.Context(), func(hns.Key, hns.Value) {}); err != nil {
			r.Fatal(err)
		}
		if text, err := os.ReadFile(r.settings.Journal); err != nil || string(text) != others {
			r.Errorf("the journal (%v):\n%s", err, text)
		}
	})
}

// A crash leaves the last line of the journal unfinished.
func TestAJournalThatIsCutOff(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		text, err := os.ReadFile(r.settings.Journal)
		if err != nil {
			r.Fatal(err)
		}
		if err := os.WriteFile(r.settings.Journal, text[:len(text)-5], 0o600); err != nil {
			r.Fatal(err)
		}
		r.restart()
		r.begin()
		served(r)
		r.unwritten()
	})
}

// Power fails, and the disk has the journal's length but not its text. That it is
// ours is found where it is wanted.
func TestAJournalOfNothing(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		if err := os.WriteFile(r.settings.Journal, make([]byte, 300), 0o600); err != nil {
			r.Fatal(err)
		}
		r.restart()
		r.begin()
		served(r)
		r.unwritten()
	})
}

func TestAJournalThatIsNone(t *testing.T) {
	s := settings()
	s.Journal = t.TempDir() + "/journal"
	if err := os.WriteFile(s.Journal, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := hns.NewDriver(hnsemu.New(hnsemu.WS2025).Client(), hnsemu.WS2025, s)
	if err == nil || !strings.Contains(err.Error(), s.Journal) {
		t.Errorf("got %v", err)
	}
	if text, _ := os.ReadFile(s.Journal); string(text) != "{}" {
		t.Error("the file was touched")
	}
}

// An earlier proxy, such as kube-proxy, has left load balancers and remote
// endpoints: equal ones are adopted unchanged. On l2bridge kube-proxy gives no
// source VIP.
func TestWhatAnEarlierProxyHasLeft(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		remote := r.emu.AddEndpoint(hns.Endpoint{
			HostComputeNetwork: r.network, Flags: hns.FlagRemote, IpConfigurations: []hns.IpConfig{{IpAddress: "10.244.2.2"}},
		})
		lb := hns.LoadBalancer{
			HostComputeEndpoints: []string{remote}, Flags: hns.FlagDSR,
			FrontendVIPs: []string{"10.96.0.10"}, PortMappings: []hns.PortMapping{{Protocol: 6, InternalPort: 8080, ExternalPort: 80}},
		}
		var log bytes.Buffer
		r.settings.Log = slog.New(slog.NewTextHandler(&log, nil))
		r.restart()
		same := r.emu.AddBalancer(lb, false)
		lb.FrontendVIPs, lb.SourceVIP = []string{"10.96.0.11"}, "192.0.2.9"
		other := r.emu.AddBalancer(lb, false)
		r.set("same", "10.96.0.10", "10.244.2.2")
		r.begin()
		r.unwritten()
		r.set("differs", "10.96.0.11", "10.244.2.2 10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.2.2")
		r.serves("10.96.0.11", "10.244.2.2 10.244.2.3")
		for _, id := range []string{same, other} {
			if n := strings.Count(log.String(), id); n != 1 {
				r.Errorf("that %s was adopted is logged %d times:\n%s", id, n, log.String())
			}
		}
		r.unset("same")
		r.sync()
		r.settle()
		r.serves("10.96.0.10", "")
		if got := r.remotes(); got != "10.244.2.2 10.244.2.3" {
			r.Errorf("remote endpoints: %s", got)
		}
	})
}

// A load balancer that others made for several frontends is theirs.
func TestAFrontendThatOthersHave(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.others("10.96.0.10", "10.96.0.12")
		r.set("api", "10.96.0.11", "10.244.2.2")
		r.begin()
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.fails("does not own")
		r.serves("10.96.0.11", "10.244.2.2")
	})
}

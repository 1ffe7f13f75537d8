package hns_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/ledger"
	"github.com/tandem-proxy/tandem/windows/hns"
	"github.com/tandem-proxy/tandem/windows/hnsemu"
)

// refuse lets calls of a function fail, so many times.
func (r *rig) refuse(name string, code hns.Code, times int) {
	r.emu.Hook(func(c *hnsemu.Call) hns.Code {
		if c.Name != name || times == 0 {
			return 0
		}
		times--
		return code
	})
}

const (
	serverGone       hns.Code = 0x6ba
	notImplemented   hns.Code = 0x80004001
	endpointNotFound hns.Code = 0x803b0002
	notFound         hns.Code = 0x490
)

func TestModifyThatDoesNothing(t *testing.T) {
	on(t, hnsemu.WS2025RT, func(r *rig) { // our gate: not even tried
		web(r)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
		if n := r.emu.Calls("HcnModifyLoadBalancer"); n != 0 {
			r.Errorf("Modify was called %d times", n)
		}
	})
	on(t, hnsemu.WS2025RT, func(r *rig) { // an HNS that has the fault and says it is newer
		r.version = hnsemu.WS2025
		r.restart()
		web(r)
		for _, last := range []string{"10.244.2.3", "10.244.2.4"} {
			r.set("web", "10.96.0.10", "10.244.1.2 "+last)
			r.sync()
			r.serves("10.96.0.10", "10.244.1.2 "+last)
		}
		if n := r.emu.Calls("HcnModifyLoadBalancer"); n != 1 {
			r.Errorf("Modify was called %d times, want 1", n)
		}
	})
}

func TestModifyThatIsNotImplemented(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.refuse("HcnModifyLoadBalancer", notImplemented, -1)
		for _, last := range []string{"10.244.2.3", "10.244.2.4"} {
			r.set("web", "10.96.0.10", "10.244.1.2 "+last)
			r.sync()
			r.serves("10.96.0.10", "10.244.1.2 "+last)
		}
		if n := r.emu.Calls("HcnModifyLoadBalancer"); n != 1 {
			r.Errorf("Modify was called %d times, want 1", n)
		}
	})
}

// HNS is stopped while a change is made, and comes back as it was.
func TestHNSIsDownForAWhile(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Down(true)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.fails("HNS does not answer")
		for range 20 {
			time.Sleep(time.Until(r.backend.Next()))
			if _, err := r.backend.Sync(r.Context()); err == nil {
				r.Fatal("a sync succeeded without an HNS")
			}
		}
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		r.emu.Down(false)
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
		r.gaps(0)
	})
}

// The connection breaks after HNS has carried a call out: its outcome is looked
// up, not guessed.
func TestALostAnswer(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.refuse("HcnQueryLoadBalancerProperties", serverGone, 1)
		r.set("new", "10.96.0.12", "10.244.2.2")
		r.fails("outcome unknown")
		r.serves("10.96.0.12", "10.244.2.2")
		r.settle()
		r.serves("10.96.0.12", "10.244.2.2")
		if n := len(r.emu.Balancers()); n != 3 {
			r.Errorf("%d load balancers, want 3", n)
		}
		r.unset("new")
		r.sync()
		r.serves("10.96.0.12", "")
	})
}

func TestHNSIsDownAtTheStart(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.restart()
		r.emu.Down(true)
		if err := r.backend.Adopt(r.Context()); err == nil {
			r.Fatal("adopted an HNS that does not answer")
		}
		if err := r.backend.Remove(r.Context()); err == nil {
			r.Fatal("removed from an HNS that does not answer")
		}
		r.emu.Down(false)
		served(r)
		r.begin()
		served(r)
		r.gaps(0)
	})
}

// Load balancers vanish, all but one, at a restart of HNS (kubernetes#110849).
func TestLoadBalancersVanish(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Remove(r.balancer("10.96.0.10").ID)
		r.driver.Doubt()
		if yes, _ := r.backend.Disturbed(r.Context()); !yes {
			r.Fatal("not disturbed")
		}
		if drift := r.audit(); drift != 1 {
			r.Errorf("drift: %d", drift)
		}
		served(r)
		if yes, _ := r.backend.Disturbed(r.Context()); yes {
			r.Error("still disturbed")
		}
	})
}

// The network is made anew, with another id: pods have new endpoints, load
// balancers and remote endpoints are gone.
func TestTheNetworkIsMadeAnew(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		for _, lb := range r.emu.Balancers() {
			r.emu.Remove(lb.ID)
		}
		r.emu.RemoveNetwork(r.network)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.4")
		r.fails("has gone")
		time.Sleep(time.Second)
		r.fails("no l2bridge or overlay network")
		r.network = r.emu.AddNetwork("pods", hns.TypeL2Bridge)
		r.emu.AddPod(r.network, "10.244.1.2")
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2 10.244.2.4")
		r.serves("10.96.0.11", "10.244.2.2 10.244.2.3")
	})
}

// An object vanishes while all are listed, so that the list fails as a whole:
// that is not an empty HNS.
func TestAListThatFails(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.restart()
		r.refuse("HcnOpenLoadBalancer", notFound, 2)
		r.begin()
		served(r)
		if n := r.emu.Writes(); n != 0 {
			r.Errorf("%d writes", n)
		}
		r.refuse("HcnOpenLoadBalancer", notFound, -1)
		if _, err := r.backend.Audit(r.Context()); err == nil {
			r.Error("an audit that could not read succeeded")
		}
		r.refuse("", 0, 0)
		served(r)
	})
}

func TestAPodVanishesWhileAllAreListed(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2")
		r.refuse("HcnOpenEndpoint", endpointNotFound, 1) // the first pod
		if err := r.backend.Adopt(r.Context()); err != nil {
			r.Fatal(err)
		}
	})
}

// HNS has a load balancer that was not there when it was read (kubernetes#139519).
func TestALoadBalancerThatTurnsUp(t *testing.T) {
	for _, code := range []hns.Code{0, 0xb7, 0x803b0012} {
		on(t, hnsemu.WS2025, func(r *rig) {
			r.emu.Behave(hnsemu.Behaviour{Exists: code})
			web(r)
			lb := r.balancer("10.96.0.11")
			lb.FrontendVIPs = []string{"10.96.0.12"}
			r.emu.AddBalancer(lb, false)
			lb.FrontendVIPs = []string{"10.96.0.13"}
			r.emu.AddBalancer(lb, false)
			r.set("same", "10.96.0.12", "10.244.2.2 10.244.2.3")
			r.set("differs", "10.96.0.13", "10.244.2.2")
			r.sync()
			r.serves("10.96.0.12", "10.244.2.2 10.244.2.3")
			r.serves("10.96.0.13", "10.244.2.2")
			r.gaps(0)
			if n := r.emu.Calls("HcnEnumerateLoadBalancers"); n != 1 {
				r.Errorf("listed %d times", n)
			}
		})
	}
}

// Windows Server 2019 refuses the first deletion of a load balancer.
func TestADeletionThatFailsOnce(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		r.emu.Behave(hnsemu.Behaviour{DeleteFailsOnce: true})
		web(r)
		r.set("web", "10.96.0.10", "10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.2.3")
		r.unset("web")
		r.sync()
		r.serves("10.96.0.10", "")
	})
}

// A deletion that goes on failing leaves the Service as it was.
func TestADeletionThatFails(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		web(r)
		r.refuse("HcnDeleteLoadBalancer", 0x1f, 6)
		r.set("web", "10.96.0.10", "10.244.2.3")
		r.fails("default/web")
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		r.settle()
		r.serves("10.96.0.10", "10.244.2.3")
	})
}

// After its deletion a load balancer cannot be made again for a while.
func TestACreationThatFailsAfterTheDeletion(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		web(r)
		r.refuse("HcnCreateLoadBalancer", 0x803b0007, 3)
		r.set("web", "10.96.0.10", "10.244.2.3")
		r.fails("default/web")
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.2") // back to what was: it is not there any more
		r.fails("default/web")
		r.settle()
		served(r)
	})
}

// HNS says that an endpoint is deleted, and it stays (Windows-Containers#631).
func TestADeletionThatIsALie(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Behave(hnsemu.Behaviour{DeleteLies: true})
		r.unset("web")
		r.unset("api")
		r.sync()
		r.settle()
		r.emu.Behave(hnsemu.Behaviour{})
		if drift := r.audit(); drift == 0 {
			r.Error("nobody noticed")
		}
		r.settle()
		if got := r.remotes(); got != "" {
			r.Errorf("left: %s", got)
		}
	})
}

// A pod is in its slice before its CNI plug-in has made the endpoint.
func TestAPodThatIsLate(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.1.8 10.244.2.2")
		r.fails("10.244.1.8")
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		r.set("new", "10.96.0.12", "10.244.1.8 10.244.1.3")
		r.fails("10.244.1.8")
		r.serves("10.96.0.12", "10.244.1.3")
		r.emu.AddPod(r.network, "10.244.1.8")
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2 10.244.1.8 10.244.2.2")
		r.serves("10.96.0.12", "10.244.1.3 10.244.1.8")
	})
}

// What was made in part belongs to its Service, and goes with it.
func TestALatePodsServiceIsDeleted(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("new", "10.96.0.12", "10.244.1.8 10.244.1.3")
		r.fails("10.244.1.8")
		r.unset("new")
		r.sync()
		r.serves("10.96.0.12", "")
		r.settle()
	})
}

func TestNoneOfThePodsIsThereYet(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.set("new", "10.96.0.12", "10.244.1.8")
		r.fails("none of the endpoints is in HNS")
		r.serves("10.96.0.12", "")
		r.set("web", "10.96.0.10", "10.244.1.8") // the old ones are better than none
		r.fails("none of the endpoints is in HNS")
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.2")
		r.emu.AddPod(r.network, "10.244.1.8")
		r.settle()
		r.serves("10.96.0.12", "10.244.1.8")
		r.serves("10.96.0.10", "10.244.1.8")
	})
}

// A new pod of this node gets the address of one that was on another node: load
// balancers follow, and the remote endpoint does not stay beside the pod's
// (kubernetes#130963).
func TestARemoteAddressBecomesLocal(t *testing.T) {
	for _, inUse := range []bool{false, true} {
		on(t, hnsemu.WS2025, func(r *rig) {
			r.emu.Behave(hnsemu.Behaviour{DeleteInUse: inUse})
			r.set("web", "10.96.0.10", "10.244.2.2")
			r.ports["api"] = port("api", "10.96.0.11", "10.244.2.2")
			r.begin()
			pod := r.emu.AddPod(r.network, "10.244.2.2")
			local := port("web", "10.96.0.10", "10.244.2.2")
			local.Fronts[0].On[0].Pool.Endpoints[0].Local = true
			r.replace("web", local)
			r.sync()
			if got := r.balancer("10.96.0.10").HostComputeEndpoints; len(got) != 1 || got[0] != pod {
				r.Errorf("web is balanced over %v, want the pod's %s", got, pod)
			}
			r.sound() // the other still needs the remote one
			local = port("api", "10.96.0.11", "10.244.2.2")
			local.Fronts[0].On[0].Pool.Endpoints[0].Local = true
			r.replace("api", local)
			r.sync()
			if got := r.remotes(); got != "" {
				r.Errorf("the remote endpoint %s stays beside the pod's", got)
			}
			r.settle()
			if got := r.balancer("10.96.0.11").HostComputeEndpoints; len(got) != 1 || got[0] != pod {
				r.Errorf("api is balanced over %v, want the pod's %s", got, pod)
			}
		})
	}
}

// A pod of this node goes, and its address comes up on another node.
func TestALocalAddressBecomesRemote(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		pod := r.emu.AddPod(r.network, "10.244.1.8")
		r.set("web", "10.96.0.10", "10.244.1.8 10.244.2.2")
		r.begin()
		r.set("web", "10.96.0.10", "10.244.2.2")
		r.sync()
		r.emu.Remove(pod)
		remote := port("web", "10.96.0.10", "10.244.1.8 10.244.2.2")
		remote.Fronts[0].On[0].Pool.Endpoints[0].Local = false
		r.replace("web", remote)
		r.sync()
		r.serves("10.96.0.10", "10.244.1.8 10.244.2.2")
		if got := r.remotes(); got != "10.244.1.8 10.244.2.2" {
			r.Errorf("remote endpoints: %s", got)
		}
	})
}

// HNS refuses one endpoint: its Service has the others.
func TestAnEndpointThatIsRefused(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		refuse := true
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if refuse && c.Name == "HcnCreateEndpoint" && strings.Contains(c.Text, "10.244.2.9") {
				return 0x803b002f
			}
			return 0
		})
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.9")
		r.fails("10.244.2.9")
		r.serves("10.96.0.10", "10.244.1.2")
		refuse = false
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.9")
	})
}

func TestALoadBalancerIsEdited(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		r.emu.Change(r.balancer("10.96.0.10").ID, func(lb *hns.LoadBalancer) {
			lb.HostComputeEndpoints, lb.SourceVIP = lb.HostComputeEndpoints[:1], "10.0.0.9"
		})
		if drift := r.audit(); drift != 1 {
			r.Errorf("drift: %d", drift)
		}
		served(r)
		if got := r.balancer("10.96.0.10").SourceVIP; got != "192.0.2.1" {
			r.Errorf("source VIP %s", got)
		}
	})
}

// Somebody has deleted a remote endpoint; the next change of a Service finds out.
func TestARemoteEndpointIsDeleted(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		for _, e := range r.emu.Endpoints() {
			if e.Name == "tandem_10.244.2.3" {
				r.emu.Remove(e.ID)
			}
		}
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.3")
		r.audit()
		r.settle()
		served2 := r.served("10.96.0.11")
		if served2 != "10.244.2.2 10.244.2.3" {
			r.Errorf("the other Service has %s", served2)
		}
	})
}

// A call hangs: it is given up, no second one is made, and when HNS lets go of
// it all is read back and goes on.
func TestACallThatHangs(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		release := make(chan struct{})
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if c.Name == "HcnModifyLoadBalancer" {
				<-release
			}
			return 0
		})
		r.set("web", "10.96.0.10", "10.244.1.2")
		start := time.Now()
		_, err := r.backend.Sync(r.Context())
		if !errors.Is(err, ledger.ErrUnknown) || time.Since(start) != 2*time.Minute {
			r.Fatalf("after %v: %v", time.Since(start), err)
		}
		calls := r.emu.Calls()
		time.Sleep(time.Until(r.backend.Next()))
		r.fails("has not answered an earlier call")
		if n := r.emu.Calls(); n != calls {
			r.Errorf("%d calls while one hangs", n-calls)
		}
		close(release)
		time.Sleep(time.Second)
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2")
	})
}

func TestTheEndOfTheContextEndsACommit(t *testing.T) {
	on(t, hnsemu.WS2025, func(r *rig) {
		web(r)
		ctx, cancel := context.WithCancel(r.Context())
		release := make(chan struct{})
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			if c.Name == "HcnModifyLoadBalancer" {
				cancel()
				<-release
			}
			return 0
		})
		r.set("web", "10.96.0.10", "10.244.1.2")
		if _, err := r.backend.Sync(ctx); err == nil {
			r.Fatal("no error")
		}
		close(release)
		r.emu.Hook(nil)
		time.Sleep(time.Second)
		r.settle()
		r.serves("10.96.0.10", "10.244.1.2")
	})
}

// HNS is read while a change is made: what it shows of before must not undo what
// is known of after.
func TestAChangeWhileHNSIsRead(t *testing.T) {
	on(t, hnsemu.WS2019, func(r *rig) {
		web(r)
		listed, release := make(chan struct{}), make(chan struct{})
		var old string
		r.emu.Hook(func(c *hnsemu.Call) hns.Code {
			// The list of ids is there, the last object is not read yet.
			if c.Name == "HcnCloseLoadBalancer" && old == "" {
				old = c.ID
				close(listed)
				<-release
			}
			return 0
		})
		done := make(chan error)
		go func() {
			_, err := r.driver.Observe(r.Context())
			done <- err
		}()
		<-listed
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.3")
		r.sync()
		close(release)
		<-done
		r.set("web", "10.96.0.10", "10.244.1.2 10.244.2.4")
		r.sync()
		r.serves("10.96.0.10", "10.244.1.2 10.244.2.4")
		r.unset("web")
		r.sync()
		r.serves("10.96.0.10", "")
	})
}

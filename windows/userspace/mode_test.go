// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/tandem-proxy/tandem/core/dataplane"
	"github.com/tandem-proxy/tandem/core/model"
	"github.com/tandem-proxy/tandem/core/relay/direct"
)

// On a loopback adapter the same is programmed, and a gap states that only this node
// is served.
func TestLoopbackAdapterIsAGap(t *testing.T) {
	act := model.Action{Pool: &model.Pool{Endpoints: []model.Endpoint{{Addr: netip.MustParseAddrPort("10.0.0.1:80")}}}}
	port := &model.Port{Frontends: []model.Frontend{{At: netip.MustParseAddrPort("10.96.0.1:80"), On: [model.Origins]model.Action{act, act, act}}}}
	said := map[bool]int{}
	objects := map[bool]int{}
	for _, loopback := range []bool{false, true} {
		all, gaps := dataplane.Compile(direct.NewCompiler(placement(loopback)), &model.Host{}, []*model.Port{port})
		said[loopback], objects[loopback] = len(model.OwnGaps(gaps[port.ID])), len(all)
	}
	if said[false] != 0 || said[true] != 1 || objects[false] != objects[true] {
		t.Errorf("gaps %v, objects %v", said, objects)
	}
}

func TestMark(t *testing.T) {
	for seconds, ours := range map[uint32]bool{
		lifetime: true, lifetime - 1: true, lifetime - slack + 1: true,
		lifetime + 1: false, lifetime - slack: false, 0: false, 0xffffffff: false, 86400: false,
	} {
		if marked(seconds) != ours {
			t.Errorf("an address that is valid for %d seconds: ours %t", seconds, !ours)
		}
	}
}

// adapterOf has some addresses: the value is whether one is marked.
type adapterOf struct {
	has     map[netip.Addr]bool
	refuses error
	vanish  bool // what is there is removed by another probe after the first Add
}

var errTaken = errors.New("taken")

func (a *adapterOf) Add(ip netip.Addr) error {
	if a.refuses != nil {
		return a.refuses
	}
	if _, there := a.has[ip]; there {
		if a.vanish {
			delete(a.has, ip)
		}
		return errTaken
	}
	a.has[ip] = true
	return nil
}

func (a *adapterOf) Remove(ip netip.Addr) error {
	delete(a.has, ip)
	return nil
}

func (a *adapterOf) List() (own []netip.Addr, err error) {
	for ip, marked := range a.has {
		if marked {
			own = append(own, ip)
		}
	}
	return own, nil
}

// An address that a killed probe has left, or that another one has just now, does not
// make the mode unavailable; one of another program stays.
func TestProbeBesideAnother(t *testing.T) {
	scratch, denied := netip.MustParseAddr("198.18.84.1"), errors.New("access denied")
	for name, tt := range map[string]struct {
		adapterOf
		want error
		left int
	}{
		"alone":           {adapterOf{has: map[netip.Addr]bool{}}, nil, 0},
		"left by a probe": {adapterOf{has: map[netip.Addr]bool{scratch: true}}, nil, 0},
		"removed by one":  {adapterOf{has: map[netip.Addr]bool{scratch: true}, vanish: true}, nil, 0},
		"another program": {adapterOf{has: map[netip.Addr]bool{scratch: false}}, errTaken, 1},
		"no privilege":    {adapterOf{has: map[netip.Addr]bool{}, refuses: denied}, denied, 0},
	} {
		a := tt.adapterOf
		if err := tryAddress(&a, func(err error) bool { return errors.Is(err, errTaken) }); !errors.Is(err, tt.want) || (tt.want == nil) != (err == nil) || len(a.has) != tt.left {
			t.Errorf("%s: %v, left %v", name, err, a.has)
		}
	}
}

package ipvs

import (
	"testing"

	"github.com/tandem-proxy/tandem/linux/netns"
)

func TestProbe(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	if err := Probe(t.Context(), Options{}); err != nil {
		t.Skip(err)
	}
}

package ipvs

import (
	"testing"

	"github.com/tandem-proxy/tandem/core/model"
)

// What was programmed with another bit of the mark is known as ours: a restart
// replaces it, and whoever cleans up need not know the bit.
func TestAnotherMarkIsOursToo(t *testing.T) {
	s := newSite(t)
	nothing := s.state()
	port := web(first)
	port.Fronts[0].On[model.FromHost] = model.Action{Pool: &model.Pool{Endpoints: web(second).Fronts[0].On[0].Pool.Endpoints}}
	for _, mark := range []uint32{1 << 14, 1 << 20, 1 << 3} {
		s.options.Mark = mark
		s.open()
		s.set(port)
		s.same(testHost(), []*model.Port{port})
		s.close()
	}
	s.options.Mark = 1 << 14
	s.open()
	if err := s.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := s.state(); left != nothing {
		t.Errorf("left:\n%s\nbefore:\n%s", left, nothing)
	}
}

// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// A thousand Services are all there as compiled, one change among them costs what
// it costs among few, a restart writes nothing, and removal leaves nothing.
func TestScale(t *testing.T) {
	const services = 1000
	s := newSite(t)
	s.open()
	var ports []*model.Port
	for i := range services {
		ports = append(ports, numbered(i, false, 1, 2, 3, 4, 5))
	}
	begin := time.Now()
	objects := s.set(ports...)
	t.Logf("%d Services: %d objects in %s", services, objects, time.Since(begin).Round(time.Millisecond))
	s.same(testHost(), ports)

	ports[500] = numbered(500, false, 1, 2, 9, 4, 5)
	begin = time.Now()
	if n := s.set(ports...); n != 2 {
		t.Errorf("one endpoint replaced: %d ops, want 2", n)
	}
	t.Logf("one endpoint replaced in %s", time.Since(begin).Round(10*time.Microsecond))

	s.close()
	begin = time.Now()
	s.open()
	s.SetHost(testHost())
	if n := s.set(ports...); n != 0 {
		t.Errorf("a restart wrote %d objects", n)
	}
	t.Logf("restart in %s", time.Since(begin).Round(time.Millisecond))
	if err := s.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if have, err := s.driver.observe(t.Context()); err != nil || len(have) > 0 {
		t.Errorf("%d objects are left, %v", len(have), err)
	}
}

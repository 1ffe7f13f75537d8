// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-proxy/tandem/core/engine"
	"github.com/tandem-proxy/tandem/core/model"
)

// A start is one line, a change one for each Service at the level of --v=2, and a
// change of very many is bounded.
func TestWhatIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.Level(-2)}))
		b := start(t, func(o *engine.Options) { o.Log = log })
		lines := func() []string {
			synctest.Wait()
			defer out.Reset()
			return strings.Split(strings.TrimSpace(out.String()), "\n")
		}
		for i := range 30 {
			b.Set(service(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", i+1)))
		}
		b.Synced(true)
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], `level=INFO msg="services programmed" services=30 endpoints=0 mode=`) {
			t.Errorf("start: %q", got)
		}
		b.Set(service("s1", "10.96.1.1"))
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], `msg="service programmed" service=ns/s1 ports=1 endpoints=0`) {
			t.Errorf("change: %q", got)
		}
		b.Delete(&model.Service{Name: model.ServiceName{Namespace: "ns", Name: "s1"}})
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], `msg="service removed" service=ns/s1`) {
			t.Errorf("deletion: %q", got)
		}
		for i := range 1000 {
			b.Set(service(fmt.Sprint("n", i), fmt.Sprintf("10.97.%d.%d", i/250, i%250+1)))
		}
		if got := lines(); len(got) > 200 {
			t.Errorf("%d lines for 1000 Services", len(got))
		}
	})
}

// The problems of a namespace's twenty thousand objects do not flood the log, and hide no other's. The
// hook has all of them.
func TestTheLogIsSharedByNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		hooked := 0
		b := start(t, func(o *engine.Options) {
			o.Log = slog.New(slog.NewTextHandler(&out, nil))
			o.Hooks.Problem = func(model.Problem) { hooked++ }
		})
		b.Synced(true)
		synctest.Wait()
		out.Reset()
		problem := func(of string) model.Problem {
			return model.Problem{Object: "Service " + of, Why: model.WhyInvalid, Detail: "port 0"}
		}
		var all []model.Problem
		for i := range 20_000 {
			all = append(all, problem(fmt.Sprint("tenant/s", i)))
		}
		b.Problems("API server", append(all, problem("victim/v")))
		sleep(time.Minute)
		text := out.String()
		if n := strings.Count(text, "\n"); n > 120 || hooked != 20_001 {
			t.Errorf("%d lines, %d problems to the hook", n, hooked)
		}
		for _, want := range []string{`object="Service victim/v"`, `msg="more objects not fully programmed" namespace=tenant problems=19900`} {
			if strings.Count(text, want) != 1 {
				t.Errorf("no %s in %d bytes", want, len(text))
			}
		}
		sleep(time.Hour)
		out.Reset()
		b.Problems("API server", []model.Problem{problem("tenant/x")})
		if sleep(engine.Hold); strings.Count(out.String(), "tenant/x") != 1 {
			t.Errorf("later: %s", out.String())
		}
	})
}

// A data plane that cannot be read for long is one line a minute, and another one for another
// reason, though it is tried each second.
func TestAFailedStartIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		kernel := newKernel()
		kernel.Broken = errors.New("no such file")
		b := startOn(t, kernel, func(o *engine.Options) { o.Log = slog.New(slog.NewTextHandler(&out, nil)) })
		sleep(5*time.Minute - time.Second/2)
		b.kernel.Do(func() { b.kernel.Broken = errors.New("permission denied") })
		sleep(30 * time.Second)
		b.kernel.Do(func() { b.kernel.Broken = nil })
		b.Synced(true)
		sleep(time.Minute)
		if n := strings.Count(out.String(), "no such file"); n != 5 {
			t.Errorf("%d lines in 5 minutes:\n%s", n, out.String())
		}
		if n := strings.Count(out.String(), "permission denied"); n != 1 || !b.Status().Adopted {
			t.Errorf("%d lines for another reason, status %+v", n, b.Status())
		}
	})
}

// The problems of a host without its Node are not reported when the Node comes
// before the source is synced, however close.
func TestHostProblemsFollowTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported []string
		b := start(t, func(o *engine.Options) {
			o.Host = func(n *model.Node, _ []*model.ServiceCIDR) (*model.Host, []model.Problem) {
				if n == nil {
					return &model.Host{Name: "here"}, []model.Problem{{Object: "Node here", Why: model.WhyNoNode}}
				}
				return &model.Host{Name: "here", IPs: n.IPs}, nil
			}
			o.Hooks.Problem = func(p model.Problem) { reported = append(reported, p.Object) }
		})
		synctest.Wait()
		b.Set(&model.Node{Name: "here"})
		b.Synced(true)
		sleep(time.Minute)
		if len(reported) > 0 {
			t.Errorf("reported %q", reported)
		}
	})
}

// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A server that answers that it lacks an optional kind is reachable: the kind does not keep the
// end of an outage from being logged, nor the next one from having a beginning of its own.
func TestAMissingKindDoesNotFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logs bytes.Buffer
		log := newFailureLog(slog.New(slog.NewTextHandler(&logs, nil)))
		needed, optional := kind{resource: "services"}, kind{resource: "servicecidrs", optional: true}
		services, ranges := newResourceStatus(&needed, log, "server"), newResourceStatus(&optional, log, "server")
		outage := func() {
			for range 3 {
				services.failed(&needed, errors.New("no route to host"))
				ranges.failed(&optional, errors.New("no route to host"))
				time.Sleep(time.Second)
			}
			ranges.missing(&optional, apierrors.NewNotFound(schema.GroupResource{Resource: "servicecidrs"}, ""))
			services.works()
		}
		outage()
		if !strings.Contains(logs.String(), "watch of the API server recovered") {
			t.Errorf("the end of the outage is not logged: %s", logs.String())
		}
		if r := ranges.resource(); !r.Failing.IsZero() || r.Err == "" {
			t.Errorf("failing since %s: %q", r.Failing, r.Err)
		}
		time.Sleep(time.Hour)
		logs.Reset()
		outage()
		if !strings.Contains(logs.String(), "after=3s") {
			t.Errorf("the second outage: %s", logs.String())
		}
	})
}

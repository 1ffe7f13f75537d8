// SPDX-License-Identifier: Apache-2.0

package history_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tandem-proxy/tandem/core/history"
	"github.com/tandem-proxy/tandem/core/model"
)

// A namespace whose objects change without an end leaves the last change of another one in the history.
func TestATenantsChangesHideNoOthers(t *testing.T) {
	var r history.Recorder
	r.Arrived(history.Change{At: 1e9, Kind: history.Service, Namespace: "shop", Name: "web", Service: "web", Version: 7})
	r.Synced(history.Sync{At: 2e9, Failed: 1, Err: "no space"})
	for i := range history.Most {
		r.Arrived(history.Change{At: 3e9 + int64(i)*int64(10*time.Millisecond), Kind: history.EndpointSlice, Namespace: "evil", Name: fmt.Sprint("s", i%5), Service: "s"})
	}
	if d := r.Find(history.Filter{Service: model.ServiceName{Namespace: "shop", Name: "web"}}); len(d.Entries) == 0 {
		t.Errorf("after %d changes of another namespace, which take %s, the history has none of shop/web", history.Most, history.Most*10*time.Millisecond)
	}
}

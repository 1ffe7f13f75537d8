// SPDX-License-Identifier: Apache-2.0

package platform

import "github.com/tandem-proxy/tandem/linux/host"

// lowering is how much nicer answers are than changes: they have a tenth of the weight
// (kernel/sched/core.c, sched_prio_to_weight), and what they hold others may wait for.
const lowering = 10

// lower makes the calling thread nicer.
func lower() (restore func() error, err error) {
	usual, err := host.Nice()
	if err != nil {
		return nil, err
	}
	return func() error { return host.SetNice(usual) }, host.SetNice(usual + lowering)
}

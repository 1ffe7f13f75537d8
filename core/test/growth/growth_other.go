// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package growth

import "time"

var start = time.Now()

// clock returns wall time: what else runs here counts, too.
func clock() time.Duration { return time.Since(start) }

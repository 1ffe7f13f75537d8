// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/tandem-proxy/tandem/core/model"
)

// The annotations that state how endpoints are chosen: of Services, but for the
// weights, which are of EndpointSlices and count for all endpoints of theirs.
const (
	AnnotationScheduler = "tandem.dev/load-balancing" // rr, lc, sh, random or maglev
	AnnotationSlowStart = "tandem.dev/slow-start"     // seconds
	AnnotationSpill     = "tandem.dev/zone-spill"     // above=N,floor=N
	AnnotationWeight    = "tandem.dev/weight"         // 0 to 65535
	// AnnotationCiliumWeight means the same; the other one comes first.
	AnnotationCiliumWeight = "service.cilium.io/weight"
)

// maxSlowStart bounds how long an endpoint counts as new.
const maxSlowStart = time.Hour

// annotation returns the value of an annotation, and a function that reports it as
// invalid.
func (f *faults) annotation(key string) (value string, has bool, bad func(remark string)) {
	value, has = f.meta.Annotations[key]
	return strings.TrimSpace(value), has, func(remark string) {
		f.bad(model.WhyInvalid, "metadata.annotations", key+"="+value, remark)
	}
}

// choice converts the annotations of a Service. Invalid ones are left out.
func choice(f *faults) (c model.Choice) {
	if len(f.meta.Annotations) == 0 {
		return c
	}
	if value, has, bad := f.annotation(AnnotationScheduler); has {
		s, ok := model.ParseScheduler(value)
		if !ok || value == "" {
			bad("not rr, lc, sh, random or maglev; ignored")
		}
		c.Scheduler = s
	}
	if value, has, bad := f.annotation(AnnotationSlowStart); has {
		seconds, err := strconv.ParseUint(value, 10, 32)
		if err != nil || time.Duration(seconds)*time.Second > maxSlowStart {
			bad("not a number of seconds up to 3600; ignored")
			seconds = 0
		}
		c.SlowStart = time.Duration(seconds) * time.Second
	}
	if value, has, bad := f.annotation(AnnotationSpill); has {
		s, ok := parseSpill(value)
		if !ok {
			bad("want above=N,floor=N, with N of above at least 1; ignored")
		}
		c.Spill = s
	}
	return c
}

func parseSpill(text string) (s model.Spill, ok bool) {
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch key {
		case "above":
			n, err := strconv.ParseFloat(value, 64)
			if err != nil || !(n >= 1 && n <= math.MaxUint16) {
				return model.Spill{}, false
			}
			s.Above = n
		case "floor":
			n, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				return model.Spill{}, false
			}
			s.Floor = int(n)
		default:
			return model.Spill{}, false
		}
	}
	return s, true
}

// weight converts the weight of a slice's endpoints.
func weight(f *faults) (w uint16, weighted bool) {
	for _, key := range []string{AnnotationWeight, AnnotationCiliumWeight} {
		value, has, bad := f.annotation(key)
		if !has {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 16)
		if err == nil {
			return uint16(n), true
		}
		bad("not within 0..65535, ignored")
	}
	return 0, false
}

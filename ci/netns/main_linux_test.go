package netns

import "testing"

func TestMain(m *testing.M) { Main(m, 4) }

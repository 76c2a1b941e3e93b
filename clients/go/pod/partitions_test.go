package pod

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// The router's own answers stand in clients/partitions.json.
func TestAKeyIsInThePartitionThatTheRouterGivesIt(t *testing.T) {
	var vectors struct {
		Partitions []uint32
		Keys       []struct {
			Key                   string
			Murmur2, CRC32, FNV1a []uint32
		}
	}
	text, err := os.ReadFile("../../partitions.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Keys) < 20 {
		t.Fatal("too few keys")
	}
	for _, vector := range vectors.Keys {
		key, err := hex.DecodeString(vector.Key)
		if err != nil {
			t.Fatal(err)
		}
		answers := map[Hash][]uint32{Murmur2: vector.Murmur2, CRC32: vector.CRC32, FNV1a: vector.FNV1a, "": vector.Murmur2}
		for hash, expected := range answers {
			for at, partitions := range vectors.Partitions {
				own, err := PartitionOf(key, partitions, hash)
				if err != nil || own != expected[at] {
					t.Errorf("%q by %q among %d: %d, %v; expected %d", key, hash, partitions, own, err, expected[at])
				}
			}
		}
	}
}

func TestAHashThatIsNotSupportedIsAnError(t *testing.T) {
	if _, err := PartitionOf([]byte("a"), 64, "xxh3"); err == nil {
		t.Error("no error")
	}
	if _, err := PartitionOf([]byte("a"), 0, Murmur2); err == nil {
		t.Error("no error")
	}
}

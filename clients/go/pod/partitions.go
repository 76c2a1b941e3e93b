package pod

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"hash/fnv"
)

// Hash maps a key to a partition, as `[router.partition] hash` does.
type Hash string

const (
	// Murmur2 is that of Kafka's Java producer, and the router's default.
	Murmur2 Hash = "murmur2"
	// CRC32 is librdkafka's `consistent`.
	CRC32 Hash = "crc32"
	// FNV1a is Sarama's `NewHashPartitioner`.
	FNV1a Hash = "fnv1a"
)

// PartitionOf returns the partition of a key among so many, as routers compute it. The empty hash is [Murmur2].
func PartitionOf(key []byte, partitions uint32, hash Hash) (uint32, error) {
	if partitions == 0 {
		return 0, fmt.Errorf("no partitions")
	}
	switch hash {
	case Murmur2, "":
		return (murmur2(key) & 0x7fffffff) % partitions, nil
	case CRC32:
		return crc32.ChecksumIEEE(key) % partitions, nil
	case FNV1a:
		sum := fnv.New32a()
		sum.Write(key)
		number := int64(int32(sum.Sum32()))
		if number < 0 {
			number = -number
		}
		return uint32(number % int64(partitions)), nil
	}
	return 0, fmt.Errorf("the hash %q is not supported here; expected murmur2, crc32 or fnv1a", string(hash))
}

// murmur2 is MurmurHash2 with the seed of Kafka's Utils.murmur2.
func murmur2(key []byte) uint32 {
	const m = 0x5bd1e995
	number := 0x9747b28c ^ uint32(len(key))
	for ; len(key) >= 4; key = key[4:] {
		k := binary.LittleEndian.Uint32(key) * m
		number = number*m ^ (k^k>>24)*m
	}
	if len(key) > 0 {
		for at, part := range key {
			number ^= uint32(part) << (8 * at)
		}
		number *= m
	}
	number = (number ^ number>>13) * m
	return number ^ number>>15
}

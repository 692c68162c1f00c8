"""The commands of `kvstore`, by what they touch: keys, a look inside, disks, a local cluster."""

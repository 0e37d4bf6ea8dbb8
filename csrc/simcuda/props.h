/* props.h - where CUDA 12 and CUDA 13 keep the fields of cudaDeviceProp.
 *
 * X(field, offset in CUDA 12, offset in CUDA 13, bytes); -1: the version has no such field.
 * A test compiles the table against the headers that are there. */
#ifndef TA_SC_PROPS_H
#define TA_SC_PROPS_H

#define TA_SC_PROPS_SIZE_12 1032
#define TA_SC_PROPS_SIZE_13 1008
#define TA_SC_PROPS(X)                                                                   \
    X(name, 0, 0, 256)                                                                   \
    X(uuid, 256, 256, 16)                                                                \
    X(totalGlobalMem, 288, 288, 8)                                                       \
    X(sharedMemPerBlock, 296, 296, 8)                                                    \
    X(regsPerBlock, 304, 304, 4)                                                         \
    X(warpSize, 308, 308, 4)                                                             \
    X(memPitch, 312, 312, 8)                                                             \
    X(maxThreadsPerBlock, 320, 320, 4)                                                   \
    X(maxThreadsDim, 324, 324, 12)                                                       \
    X(maxGridSize, 336, 336, 12)                                                         \
    X(clockRate, 348, -1, 4)                                                             \
    X(totalConstMem, 352, 352, 8)                                                        \
    X(major, 360, 360, 4)                                                                \
    X(minor, 364, 364, 4)                                                                \
    X(textureAlignment, 368, 368, 8)                                                     \
    X(texturePitchAlignment, 376, 376, 8)                                                \
    X(deviceOverlap, 384, -1, 4)                                                         \
    X(multiProcessorCount, 388, 384, 4)                                                  \
    X(integrated, 396, 388, 4)                                                           \
    X(canMapHostMemory, 400, 392, 4)                                                     \
    X(concurrentKernels, 576, 560, 4)                                                    \
    X(ECCEnabled, 580, 564, 4)                                                           \
    X(pciBusID, 584, 568, 4)                                                             \
    X(pciDeviceID, 588, 572, 4)                                                          \
    X(pciDomainID, 592, 576, 4)                                                          \
    X(asyncEngineCount, 600, 584, 4)                                                     \
    X(unifiedAddressing, 604, 588, 4)                                                    \
    X(memoryClockRate, 608, -1, 4)                                                       \
    X(memoryBusWidth, 612, 592, 4)                                                       \
    X(l2CacheSize, 616, 596, 4)                                                          \
    X(persistingL2CacheMaxSize, 620, 600, 4)                                             \
    X(maxThreadsPerMultiProcessor, 624, 604, 4)                                          \
    X(streamPrioritiesSupported, 628, 608, 4)                                            \
    X(globalL1CacheSupported, 632, 612, 4)                                               \
    X(localL1CacheSupported, 636, 616, 4)                                                \
    X(sharedMemPerMultiprocessor, 640, 624, 8)                                           \
    X(regsPerMultiprocessor, 648, 632, 4)                                                \
    X(managedMemory, 652, 636, 4)                                                        \
    X(concurrentManagedAccess, 676, 656, 4)                                              \
    X(computePreemptionSupported, 680, 660, 4)                                           \
    X(canUseHostPointerForRegisteredMem, 684, 664, 4)                                    \
    X(cooperativeLaunch, 688, 668, 4)                                                    \
    X(sharedMemPerBlockOptin, 696, 672, 8)                                               \
    X(maxBlocksPerMultiProcessor, 712, 688, 4)                                           \
    X(accessPolicyMaxWindowSize, 716, 692, 4)                                            \
    X(reservedSharedMemPerBlock, 720, 696, 8)                                            \
    X(hostRegisterSupported, 728, 704, 4)                                                \
    X(memoryPoolsSupported, 744, 720, 4)                                                 \
    X(gpuDirectRDMASupported, 748, 724, 4)                                               \
    X(clusterLaunch, 772, 748, 4)

#endif
